#include "engine/linear/log_features.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/linear/row_exponents.h"
#include "engine/simd/maps.h"

namespace attnd::engine {

absl::StatusOr<Projection> MakeProjection(const FeatureMapConfig& config, const LayerShape& shape) {
  if (!(shape.scale > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale is ", shape.scale, "; it must be positive for ", config.name));
  }
  if (config.features < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("feature_map.features is ", config.features, "; it must be at least 0"));
  }
  const std::int64_t count =
      config.features == 0 ? DefaultProjections(shape.key_dim) : config.features;
  const std::int64_t most = kMaxProjectionOperations / (shape.key_dim * shape.key_dim);
  if (count > most) {
    return absl::InvalidArgumentError(absl::StrCat("feature_map.features is ", count,
                                                   "; it must be at most ", most, " for key_dim ",
                                                   shape.key_dim));
  }
  return Projection(config.seed, count, shape.key_dim);
}

ProjectedRows ProjectRows(const Projection& projection, const MapRows& rows,
                          const std::vector<float>& factors, Scratch& scratch) {
  const std::int64_t d = projection.dim();
  float* scaled = scratch.Take(GemmPaddedRows(rows.count) * d);
  std::fill(scaled + rows.count * d, scaled + GemmPaddedRows(rows.count) * d, 0.0F);
  ProjectedRows projected;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* x = rows.rows + i * rows.stride;
    float* y = scaled + i * d;
    double norm_squared = 0;
    for (std::int64_t k = 0; k < d; ++k) {
      y[k] = factors[static_cast<std::size_t>(k)] * x[k];
      norm_squared += static_cast<double>(y[k]) * static_cast<double>(y[k]);
    }
    projected.norms_squared[static_cast<std::size_t>(i)] = norm_squared;
  }
  projected.dots = projection.Project(scaled, rows.count, scratch);
  return projected;
}

RowFactor SplitFactor(double log_factor) {
  constexpr double kLog2E = 1.44269504088896340736;
  constexpr double kLn2 = 0.69314718055994530942;
  const double exponent = std::ceil(log_factor * kLog2E);
  if (!(std::abs(exponent) <= kMaxExponent)) {
    return {0, std::numeric_limits<float>::quiet_NaN()};
  }
  const double rest = std::min(log_factor - exponent * kLn2, 0.0);
  return {static_cast<std::int32_t>(exponent), static_cast<float>(rest)};
}

std::int32_t ExpFeatures(double log_factor, float* features, std::int64_t n) {
  const float largest = MaxOf(features, n);
  const RowFactor factor = SplitFactor(log_factor + static_cast<double>(largest));
  ExpShifted(features, largest, factor.log_factor, features, n);
  return factor.exponent;
}

}  // namespace attnd::engine
