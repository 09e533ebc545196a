#include "engine/efficient/efficient_engine.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/aligned_buffer.h"
#include "engine/efficient/column_fold.h"
#include "engine/efficient/efficient_plan.h"
#include "engine/efficient/key_columns.h"
#include "engine/efficient/saved_efficient_state.h"
#include "engine/linear/fold.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// Null: nothing was summed.
bool AllZero(const std::int32_t* steps, std::int64_t count) {
  return steps == nullptr ||
         std::all_of(steps, steps + count, [](std::int32_t s) { return s == 0; });
}

}  // namespace

void EfficientEngine::EncodeTail(const SealedState& /*sealed*/, const TailRows& rows, Tail& tail,
                                 Scratch& /*scratch*/) const {
  for (std::int64_t head = 0; head < layer().shape.kv_heads; ++head) {
    const std::int64_t first = (head * kBlockTokens + rows.first) * layer().dims.features;
    std::int32_t* steps = tail.exponents.data() + first;
    const bool ordinary =
        EncodeKeyRows(layer(),
                      {tail.keys.data() + rows.first * layer().shape.key_row(), rows.count,
                       rows.block + rows.first, rows.valid >> rows.first},
                      head, tail.features.data() + first, steps);
    // A draft that was dropped may have written here.
    if (ordinary) std::fill_n(steps, rows.count * layer().dims.features, 0);
  }
}

absl::Status EfficientEngine::Seal(SealedState& state, std::int64_t sealed_tokens,
                                   std::span<const Block> blocks, Scratch& scratch) const {
  EfficientState& sealed = Own(state);
  const LayerShape& shape = layer().shape;
  const LinearDims& dims = layer().dims;
  if (!sealed.has_sums()) sealed.AllocateSums();
  const Scratch::Frame frame(scratch);
  float* mantissas = scratch.Take(kBlockTokens * dims.features);
  AlignedBuffer<std::int32_t> steps;
  // Head by head, so that one head's totals stay in the cache over all blocks.
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const Block& block = blocks[b];
      const std::int64_t first = sealed_tokens + static_cast<std::int64_t>(b) * kBlockTokens;
      EncodedRows rows = {nullptr, nullptr, kBlockTokens, block.valid, dims.features};
      if (block.encoded != nullptr) {
        const std::int64_t row = head * kBlockTokens * dims.features;
        rows.mantissas = block.encoded->features.data() + row;
        rows.steps = block.encoded->exponents.data() + row;
      } else {
        if (steps.size() == 0) {
          steps = AlignedBuffer<std::int32_t>::Uninitialized(kBlockTokens * dims.features);
        }
        const bool ordinary = EncodeKeyRows(layer(), {block.keys, kBlockTokens, first, block.valid},
                                            head, mantissas, steps.data());
        rows.mantissas = mantissas;
        if (!ordinary) {
          rows.steps = steps.data();
        } else if (!AllZero(sealed.known_steps(head), dims.features)) {
          std::fill_n(steps.data(), kBlockTokens * dims.features, 0);
          rows.steps = steps.data();
        }
      }
      const ValueRows values = {block.values + head * shape.value_dim, shape.value_row()};
      if (!FoldColumns(dims, rows, values, head, sealed, scratch)) {
        return SumsOverflow(
            absl::StrCat("tokens ", first, " to ", first + kBlockTokens - 1).c_str(), head);
      }
    }
    RoundSummary(dims, head, sealed.sums());
  }
  for (const Block& block : blocks) sealed.sums().AddUnmasked(std::popcount(block.valid));
  return absl::OkStatus();
}

absl::Status EfficientEngine::CheckTail(const SealedState& state, const TailView& tail,
                                        Scratch& scratch) const {
  if (tail.rows == 0) return absl::OkStatus();
  const LayerShape& shape = layer().shape;
  const std::int64_t columns = layer().dims.features;
  const float max_value = MaxAbs(tail.tail->values.data(), tail.rows * shape.value_row());
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    const std::int64_t row = head * kBlockTokens * columns;
    const EncodedRows rows = {tail.tail->features.data() + row, tail.tail->exponents.data() + row,
                              tail.rows, tail.valid, columns};
    const ValueRows values = {tail.tail->values.data() + head * shape.value_dim, shape.value_row()};
    if (!CanFoldColumns(layer().dims, rows, values, max_value, head, Own(state), scratch)) {
      return SumsOverflow("the last tokens", head);
    }
  }
  return absl::OkStatus();
}

absl::Status EfficientEngine::Save(const SealedState& state, ByteWriter& writer) const {
  SaveEfficientState(layer(), Own(state), writer);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<SealedState>> EfficientEngine::Load(std::int64_t sealed_tokens,
                                                                   ByteReader& reader) const {
  std::shared_ptr<SealedState> state = NewState();
  absl::Status status = LoadEfficientState(layer(), sealed_tokens, reader, Own(*state));
  if (!status.ok()) return status;
  return state;
}

std::unique_ptr<AttendPlan> EfficientEngine::NewPlan() const {
  return std::make_unique<EfficientPlan>(layer());
}

absl::StatusOr<std::unique_ptr<const Engine>> MakeEfficientEngine(const LayerShape& shape,
                                                                  const LinearConfig& config) {
  absl::Status status = RejectParameters(config.feature_map, kNoParameter);
  if (!status.ok()) return status;
  if (!config.update.additive()) {
    return absl::InvalidArgumentError(
        "update is set; it must not be for efficient, whose sums only grow");
  }
  if (!config.normalized) {
    return absl::InvalidArgumentError(
        "normalization is UNNORMALIZED; it must be NORMALIZED for efficient, whose weights add up "
        "to 1 by definition");
  }
  const LinearConfig defaults;
  if (config.guard != defaults.guard) {
    return absl::InvalidArgumentError(absl::StrCat(
        "guard.policy is ", config.guard == GuardPolicy::kClamp ? "CLAMP" : "ADD_EPSILON",
        "; it must be STRICT for efficient, which has no denominator"));
  }
  if (config.guard_epsilon != defaults.guard_epsilon) {
    return absl::InvalidArgumentError(absl::StrCat("guard.epsilon is ", config.guard_epsilon,
                                                   "; it must be ", defaults.guard_epsilon,
                                                   " for efficient, which has no denominator"));
  }
  const LinearDims dims(shape.key_dim, shape.value_dim);
  absl::Status sums = CheckSums(shape, dims, shape.key_dim);
  if (!sums.ok()) return sums;
  return std::make_unique<const EfficientEngine>(LinearLayer{shape, config, nullptr, dims});
}

}  // namespace attnd::engine
