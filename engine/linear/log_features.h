// What the maps that estimate exp(scale q . k) by random features have in common.
//
// Any thread.
#ifndef ATTND_ENGINE_LINEAR_LOG_FEATURES_H_
#define ATTND_ENGINE_LINEAR_LOG_FEATURES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gemm.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/projection.h"
#include "engine/scratch.h"

namespace attnd::engine {

// The projection that `config` asks for. InvalidArgument where the layer's scale is not positive
// (its square root is taken) and where the projection would be too large.
absl::StatusOr<Projection> MakeProjection(const FeatureMapConfig& config, const LayerShape& shape);

// Up to kGemmMaxRows rows x' = factors * x and their projections.
struct ProjectedRows {
  const float* dots = nullptr;                     // [n, projection.columns()], w_j . x'
  std::array<double, kGemmMaxRows> norms_squared;  // ||x'||^2
};
ProjectedRows ProjectRows(const Projection& projection, const MapRows& rows,
                          const std::vector<float>& factors, Scratch& scratch);

// The integer e and the factor f = exp(log_factor) / 2^e in (1/2, 1] of a row whose features all
// have that factor. The factor is NaN where e is out of range.
struct RowFactor {
  std::int32_t exponent = 0;
  float log_factor = 0;  // ln f
};
RowFactor SplitFactor(double log_factor);

// features[j] = exp(features[j] + log_factor) / 2^e, where e is returned and such that the largest
// is in (1/2, 1]. All become NaN where a number or e is out of range.
std::int32_t ExpFeatures(double log_factor, float* features, std::int64_t n);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_LOG_FEATURES_H_
