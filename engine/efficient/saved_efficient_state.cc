#include "engine/efficient/saved_efficient_state.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

#include "engine/efficient/key_columns.h"
#include "engine/linear/saved_linear_state.h"

namespace attnd::engine {
namespace {

// Whether a head's steps are such as unmasked tokens give, or such as none do.
bool FitSteps(std::span<const std::int32_t> steps, std::int64_t unmasked) {
  const std::int32_t most = Split(std::numeric_limits<float>::max()).steps;
  return std::ranges::all_of(steps, [&](std::int32_t s) {
    return unmasked == 0 ? s == kNoSteps : s >= -most && s <= most;
  });
}

}  // namespace

void SaveEfficientState(const LinearLayer& layer, const EfficientState& state, ByteWriter& writer) {
  SaveLinearState(layer, SavedSums::kEfficient, state.sums(), writer);
  if (!state.has_sums()) return;
  const auto columns = static_cast<std::size_t>(layer.shape.key_dim);
  for (std::int64_t head = 0; head < layer.shape.kv_heads; ++head) {
    writer.PutAll(std::span<const std::int32_t>(state.steps(head), columns));
  }
}

absl::Status LoadEfficientState(const LinearLayer& layer, std::int64_t sealed_tokens,
                                ByteReader& reader, EfficientState& state) {
  absl::Status sums =
      LoadLinearState(layer, SavedSums::kEfficient, sealed_tokens, reader, state.sums());
  if (!sums.ok() || sealed_tokens == 0) return sums;
  state.AllocateSteps();
  const std::int64_t unmasked = state.sums().unmasked();
  for (std::int64_t head = 0; head < layer.shape.kv_heads; ++head) {
    const std::span<std::int32_t> steps(state.steps(head),
                                        static_cast<std::size_t>(layer.shape.key_dim));
    reader.GetAll(steps);
    if (!reader.ok() || !FitSteps(steps, unmasked)) {
      return DamagedSums("the steps of a column are out of range");
    }
    // Of columns beyond d_k, which hold zeros.
    if (unmasked > 0) {
      std::fill(steps.data() + layer.shape.key_dim, steps.data() + layer.dims.features, 0);
    }
  }
  return absl::OkStatus();
}

}  // namespace attnd::engine
