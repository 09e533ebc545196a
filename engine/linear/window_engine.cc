#include "engine/linear/window_engine.h"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "engine/linear/block_rows.h"
#include "engine/linear/fold.h"
#include "engine/linear/saved_window.h"
#include "engine/linear/sum_node.h"
#include "engine/linear/window_state.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

WindowState& AsWindow(SealedState& state) { return static_cast<WindowState&>(state); }
const WindowState& AsWindow(const SealedState& state) {
  return static_cast<const WindowState&>(state);
}

// Of nodes in a window of so many blocks.
std::int64_t Levels(std::int64_t blocks) {
  return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(blocks)));
}

}  // namespace

std::shared_ptr<SealedState> WindowEngine::NewState() const {
  return std::make_shared<WindowState>(shape().kv_heads, layer().dims, sealed_blocks_);
}

std::shared_ptr<SealedState> WindowEngine::Clone(const SealedState& state) const {
  return std::make_shared<WindowState>(AsWindow(state));
}

absl::Status WindowEngine::Seal(SealedState& state, std::int64_t sealed_tokens,
                                std::span<const Block> blocks, Scratch& scratch) const {
  WindowState& sealed = AsWindow(state);
  const LinearDims& dims = layer().dims;
  const Scratch::Frame frame(scratch);
  MappedRows mapped(layer(), scratch);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::int64_t first = sealed_tokens + static_cast<std::int64_t>(b) * kBlockTokens;
    auto node = std::make_shared<SumNode>(dims, shape().kv_heads, 0);
    for (std::int64_t head = 0; head < shape().kv_heads; ++head) {
      const auto h = static_cast<std::size_t>(head);
      const HeadRows rows = SealedRows(layer(), blocks[b], first, head, mapped, scratch);
      const float max_sum = SumBlock(dims, rows, node->block.data() + head * dims.totals(),
                                     node->exponents[h], scratch);
      node->shares[h] = ShareOf(static_cast<double>(max_sum));
      if (sealed.share(head) + node->shares[h] > kWholeShare) {
        return SumsOverflow(
            absl::StrCat("tokens ", first, " to ", first + kBlockTokens - 1).c_str(), head);
      }
    }
    node->unmasked = std::popcount(blocks[b].valid);
    sealed.Push(std::move(node));
  }
  sealed.Summarize();
  return absl::OkStatus();
}

absl::Status WindowEngine::CheckTail(const SealedState& state, const TailView& tail,
                                     Scratch& scratch) const {
  if (tail.rows == 0) return absl::OkStatus();
  const WindowState& sealed = AsWindow(state);
  const LinearDims& dims = layer().dims;
  const float max_value = MaxAbs(tail.tail->values.data(), tail.rows * shape().value_row());
  for (std::int64_t head = 0; head < shape().kv_heads; ++head) {
    const HeadRows rows = OpenRows(layer(), tail, head);
    const std::int64_t left = kWholeShare - sealed.share(head);
    if (ShareOf(BlockSumBound(dims, rows, max_value)) <= left) continue;
    const Scratch::Frame frame(scratch);
    std::int32_t exponent = 0;
    const float max_sum = SumBlock(dims, rows, scratch.Take(dims.totals()), exponent, scratch);
    if (ShareOf(static_cast<double>(max_sum)) > left) return SumsOverflow("the last tokens", head);
  }
  return absl::OkStatus();
}

absl::Status WindowEngine::Save(const SealedState& state, ByteWriter& writer) const {
  SaveWindow(layer(), AsWindow(state), writer);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SealedState>> WindowEngine::Load(std::int64_t sealed_tokens,
                                                                ByteReader& reader) const {
  std::shared_ptr<SealedState> state = NewState();
  absl::Status status = LoadWindow(layer(), sealed_tokens, reader, AsWindow(*state));
  if (!status.ok()) return status;
  return state;
}

// All nodes of the window, and the joining of a pair.
std::int64_t WindowEngine::seal_passes() const { return 2 + 2 * Levels(sealed_blocks_); }

std::int64_t WindowEngine::fixed_bytes() const {
  return WindowState::OwnBytes(shape().kv_heads, layer().dims) +
         Tail::Bytes(shape(), tail_layout());
}

std::int64_t WindowEngine::BlockBytes() const {
  if (sealed_blocks_ == 0) return 0;
  if (sealed_blocks_ == 1) return KeptBytes(layer().dims, shape().kv_heads, 0);
  return KeptBytes(layer().dims, shape().kv_heads, 1) / 2;
}

std::int64_t WindowEngine::bytes_per_token() const {
  return (BlockBytes() + kBlockTokens - 1) / kBlockTokens;
}

// The state before keeps all of its nodes meanwhile, so that every node that is made counts; the
// window bounds how many of them are kept.
std::int64_t WindowEngine::AppendBytes(std::int64_t /*position*/, std::int64_t count) const {
  const LinearDims& dims = layer().dims;
  const std::int64_t block = NodeBytes(dims, shape().kv_heads, 0);
  const std::int64_t node = NodeBytes(dims, shape().kv_heads, 1);
  const std::int64_t sealed = count / kBlockTokens + 1;
  return fixed_bytes() + block + Levels(sealed_blocks_) * node +
         std::min(sealed * (block + node), sealed_blocks_ * BlockBytes());
}

absl::StatusOr<std::unique_ptr<const Engine>> MakeWindowEngine(const LayerShape& shape,
                                                               const LinearConfig& config,
                                                               std::int64_t window_tokens) {
  absl::StatusOr<LinearLayer> layer = MakeLinearLayer(shape, config);
  if (!layer.ok()) return layer.status();
  return std::make_unique<const WindowEngine>(*std::move(layer), window_tokens);
}

}  // namespace attnd::engine
