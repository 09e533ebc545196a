#include "engine/linear/linear_layer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/linear/denominator_guard.h"

namespace attnd::engine {

absl::Status CheckSums(const LayerShape& shape, const LinearDims& dims, std::int64_t features,
                       std::int64_t factor) {
  const std::int64_t columns = std::max(dims.value_columns + 1, kBlockTokens);
  const std::int64_t sums = shape.kv_heads * dims.features * columns;
  if (sums <= kMaxSums / factor) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("kv_heads * c * max(value_dim + 1, 64) is ", sums,
                                                 "; it must be at most ", kMaxSums / factor,
                                                 " (c = ", features, " features a key)"));
}

absl::StatusOr<LinearLayer> MakeLinearLayer(const LayerShape& shape, const LinearConfig& config) {
  if (absl::Status status = ValidateGuard(config); !status.ok()) return status;
  FeatureMapOr map = MakeFeatureMap(config.feature_map, shape);
  if (!map.ok()) return map.status();
  if ((*map)->sign() == KernelSign::kSigned && config.normalized) {
    return absl::InvalidArgumentError(
        absl::StrCat("normalization is NORMALIZED; it must be UNNORMALIZED for ",
                     config.feature_map.name, ", whose denominator has no fixed sign"));
  }
  const LinearDims dims((*map)->feature_dim(), shape.value_dim);
  absl::Status sums = CheckSums(shape, dims, (*map)->feature_dim());
  if (!sums.ok()) return sums;
  return LinearLayer{shape, config, *std::move(map), dims};
}

void MapKeyRows(const LinearLayer& layer, const KeyRows& rows, std::int64_t head, float* features,
                std::int32_t* exponents, Scratch& scratch) {
  const std::int64_t ld = layer.dims.features;
  const std::int64_t c = layer.map->feature_dim();
  std::array<std::int64_t, kBlockTokens> positions;
  const bool positional = layer.map->positional();
  if (positional) std::iota(positions.begin(), positions.begin() + rows.count, rows.position);
  layer.map->MapKeys({rows.keys + head * layer.shape.key_dim, layer.shape.key_row(), rows.count,
                      head, positional ? positions.data() : nullptr},
                     {features, ld, exponents}, scratch);
  for (std::int64_t i = 0; c < ld && i < rows.count; ++i) {
    std::fill(features + i * ld + c, features + (i + 1) * ld, 0.0F);
  }
  // After the map: phi(0) = 1 for elu + 1, so the zero rows of masked tokens would count.
  for (RowMask masked = ~rows.valid & FirstRows(rows.count); masked != 0; masked &= masked - 1) {
    std::fill_n(features + std::countr_zero(masked) * ld, ld, 0.0F);
  }
}

absl::Status SumsOverflow(const char* what, std::int64_t head) {
  return absl::OutOfRangeError(absl::StrCat(what, ": features or sums of kv-head ", head,
                                            " leave the range of f32 (limit 3.4e38 in magnitude)"));
}

}  // namespace attnd::engine
