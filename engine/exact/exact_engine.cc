#include "engine/exact/exact_engine.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "engine/exact/exact_plan.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/segment.h"
#include "engine/exact/token_window.h"
#include "engine/simd/convert.h"

namespace attnd::engine {
namespace {

// Element: float or, for bfloat16, std::uint16_t.
template <typename Element>
class ExactEngine final : public Engine {
 public:
  ExactEngine(const LayerShape& shape, TokenWindow window) : shape_(shape), window_(window) {}

  const char* name() const override { return "exact"; }
  const LayerShape& shape() const override { return shape_; }

  bool rounds_storage() const override { return !std::is_same_v<Element, float>; }

  // Round to nearest even; a value within half a unit of f32's largest becomes infinite, which the
  // caller's check for finite values finds.
  void RoundToStorage(float* values, std::int64_t count) const override {
    if (!rounds_storage()) return;
    std::array<std::uint16_t, 1024> bits;
    for (std::int64_t done = 0; done < count;) {
      const std::int64_t part = std::min(count - done, static_cast<std::int64_t>(bits.size()));
      F32ToBf16(values + done, bits.data(), part);
      Bf16ToF32(bits.data(), values + done, part);
      done += part;
    }
  }

  std::shared_ptr<SealedState> NewState() const override {
    return std::make_shared<KeyValueState<Element>>(shape_, window_);
  }

  std::shared_ptr<SealedState> NewStateAt(std::int64_t first_block) const override {
    return std::make_shared<KeyValueState<Element>>(shape_, window_, first_block);
  }

  std::shared_ptr<SealedState> Clone(const SealedState& state) const override {
    return std::make_shared<KeyValueState<Element>>(
        static_cast<const KeyValueState<Element>&>(state));
  }

  absl::Status Seal(SealedState& state, std::int64_t /*sealed_tokens*/,
                    std::span<const Block> blocks, Scratch& /*scratch*/) const override {
    return static_cast<KeyValueState<Element>&>(state).Append(blocks);
  }

  bool keeps_rows() const override { return true; }
  std::int64_t FirstKeptBlock(const SealedState& state) const override {
    return static_cast<const KeyValueState<Element>&>(state).FirstKeptBlock();
  }
  RowMask ReadBlock(const SealedState& state, std::int64_t block, float* keys,
                    float* values) const override {
    return static_cast<const KeyValueState<Element>&>(state).ReadBlock(block, keys, values);
  }

  // Sealing copies rows and sums nothing, so that no finite block can fail.
  absl::Status CheckTail(const SealedState& /*state*/, const TailView& /*tail*/,
                         Scratch& /*scratch*/) const override {
    return absl::OkStatus();
  }

  std::unique_ptr<AttendPlan> NewPlan() const override {
    return std::make_unique<ExactPlan<Element>>(shape_, window_);
  }

  std::int64_t fixed_bytes() const override {
    return static_cast<std::int64_t>(sizeof(KeyValueState<Element>)) + Tail::Bytes(shape_, {});
  }

  std::int64_t PlanBytes(std::int64_t tokens, std::int64_t queries,
                         std::int64_t top_k) const override {
    return ExactPlanSizes(shape_, MostSplits(tokens, window_), queries, top_k).bytes(top_k);
  }

  std::int64_t bytes_per_token() const override {
    const BlockLayout layout(shape_);
    const std::int64_t block =
        shape_.kv_heads * layout.elements() * static_cast<std::int64_t>(sizeof(Element)) +
        static_cast<std::int64_t>(sizeof(RowMask));
    return (block + kBlockTokens - 1) / kBlockTokens;
  }

  // Segments are allocated whole, and a sealed block waits for its successor.
  std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const override {
    const KeyValueState<Element> state(shape_, window_);
    const auto sealed = [](std::int64_t tokens) {
      return tokens == 0 ? 0 : (tokens - 1) / kBlockTokens;
    };
    const std::int64_t grown =
        state.CapacityBytes(sealed(position + count)) - state.CapacityBytes(sealed(position));
    return Tail::Bytes(shape_, {}) +
           (window_.tokens == 0 ? grown : std::min(grown, state.WindowBytes()));
  }

  std::int64_t RowsRead(std::int64_t position) const override {
    const std::int64_t blocks = (position + kBlockTokens - 1) / kBlockTokens;
    return kBlockTokens * (window_.tokens == 0 ? blocks : std::min(blocks, window_.blocks()));
  }

 private:
  const LayerShape shape_;
  const TokenWindow window_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Engine>> MakeExactEngine(const LayerShape& shape,
                                                              const ExactConfig& config,
                                                              std::int64_t window_tokens) {
  const TokenWindow window = {window_tokens};
  switch (config.storage) {
    case DataType::kF32:
      return std::make_unique<ExactEngine<float>>(shape, window);
    case DataType::kBf16:
      return std::make_unique<ExactEngine<std::uint16_t>>(shape, window);
    case DataType::kF16:
      break;
  }
  return absl::InvalidArgumentError("exact.storage is F16; it must be F32 or BF16");
}

}  // namespace attnd::engine
