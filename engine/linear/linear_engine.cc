#include "engine/linear/linear_engine.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/linear/attend_plan.h"
#include "engine/linear/block_rows.h"
#include "engine/linear/fold.h"
#include "engine/linear/saved_linear_state.h"
#include "engine/simd/maps.h"

namespace attnd::engine {

void LinearEngine::EncodeTail(const SealedState& /*sealed*/, const TailRows& rows, Tail& tail,
                              Scratch& scratch) const {
  for (std::int64_t head = 0; head < layer().shape.kv_heads; ++head) {
    const std::int64_t row = head * kBlockTokens + rows.first;
    MapKeyRows(layer(),
               {tail.keys.data() + rows.first * layer().shape.key_row(), rows.count,
                rows.block + rows.first, rows.valid >> rows.first},
               head, tail.features.data() + row * layer().dims.features,
               scaled_features() ? tail.exponents.data() + row : nullptr, scratch);
  }
}

absl::Status LinearEngine::Seal(SealedState& state, std::int64_t sealed_tokens,
                                std::span<const Block> blocks, Scratch& scratch) const {
  LinearState& sealed = Own(state);
  const LinearDims& dims = layer().dims;
  if (!sealed.has_sums()) sealed.AllocateSums();
  const Scratch::Frame frame(scratch);
  MappedRows mapped(layer(), scratch);
  // Head by head, so that one head's totals stay in the cache over all blocks.
  for (std::int64_t head = 0; head < layer().shape.kv_heads; ++head) {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const std::int64_t first = sealed_tokens + static_cast<std::int64_t>(b) * kBlockTokens;
      const HeadRows rows = SealedRows(layer(), blocks[b], first, head, mapped, scratch);
      if (!FoldRows(dims, rows, head, sealed, scratch)) {
        return SumsOverflow(
            absl::StrCat("tokens ", first, " to ", first + kBlockTokens - 1).c_str(), head);
      }
    }
    RoundSummary(dims, head, sealed);
  }
  for (const Block& block : blocks) sealed.AddUnmasked(std::popcount(block.valid));
  return absl::OkStatus();
}

absl::Status LinearEngine::CheckTail(const SealedState& state, const TailView& tail,
                                     Scratch& scratch) const {
  if (tail.rows == 0) return absl::OkStatus();
  const auto& sealed = Own(state);
  const LayerShape& shape = layer().shape;
  const float max_value = MaxAbs(tail.tail->values.data(), tail.rows * shape.value_row());
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    const HeadRows rows = OpenRows(layer(), tail, head);
    if (SurelyCanFoldRows(layer().dims, rows, max_value, head, sealed)) continue;
    if (!CanFoldRows(layer().dims, rows, head, sealed, scratch)) {
      return SumsOverflow("the last tokens", head);
    }
  }
  return absl::OkStatus();
}

absl::Status LinearEngine::Save(const SealedState& state, ByteWriter& writer) const {
  SaveLinearState(layer(), SavedSums::kLinear, Own(state), writer);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SealedState>> LinearEngine::Load(std::int64_t sealed_tokens,
                                                                ByteReader& reader) const {
  std::shared_ptr<SealedState> state = NewState();
  absl::Status status =
      LoadLinearState(layer(), SavedSums::kLinear, sealed_tokens, reader, Own(*state));
  if (!status.ok()) return status;
  return state;
}

std::unique_ptr<AttendPlan> LinearEngine::NewPlan() const {
  return std::make_unique<LinearAttendPlan>(layer());
}

absl::StatusOr<std::unique_ptr<const Engine>> MakeLinearEngine(const LayerShape& shape,
                                                               const LinearConfig& config) {
  absl::StatusOr<LinearLayer> layer = MakeLinearLayer(shape, config);
  if (!layer.ok()) return layer.status();
  return std::make_unique<const LinearEngine>(*std::move(layer));
}

}  // namespace attnd::engine
