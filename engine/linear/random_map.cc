#include "engine/linear/random_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/gemm.h"

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

RandomMap::RandomMap(Projection projection, double scale, const std::vector<float>& scales)
    : projection_(std::move(projection)) {
  const auto d = static_cast<std::size_t>(projection_.dim());
  const double root = std::sqrt(scale);
  key_factors_.assign(d, static_cast<float>(root));
  query_factors_.assign(d, static_cast<float>(1 / root));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    key_factors_[i] = static_cast<float>(root / static_cast<double>(scales[i]));
    query_factors_[i] = static_cast<float>(static_cast<double>(scales[i]) / root);
  }
}

void RandomMap::Map(const MapRows& rows, const std::vector<float>& factors, const MapFeatures& out,
                    Scratch& scratch) const {
  const Scratch::Frame frame(scratch);
  const std::int64_t d = projection_.dim();
  const std::int64_t padded = GemmPaddedRows(rows.count);
  float* scaled = scratch.Take(padded * d);
  std::fill(scaled + rows.count * d, scaled + padded * d, 0.0F);
  std::array<double, kGemmMaxRows> norms_squared;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* x = rows.rows + i * rows.stride;
    float* y = scaled + i * d;
    double norm_squared = 0;
    for (std::int64_t k = 0; k < d; ++k) {
      y[k] = factors[static_cast<std::size_t>(k)] * x[k];
      norm_squared += static_cast<double>(y[k]) * static_cast<double>(y[k]);
    }
    norms_squared[static_cast<std::size_t>(i)] = norm_squared;
  }
  const float* dots = projection_.Project(scaled, rows.count, scratch);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    out.exponents[i] =
        MapRow(dots + i * projection_.columns(), norms_squared[static_cast<std::size_t>(i)],
               out.features + i * out.stride);
  }
}

}  // namespace attnd::engine
