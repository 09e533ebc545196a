// Positive random features, which estimate exp(scale q . k) without bias. With x' = sqrt(scale) x
// and projections w_1 ... w_m (projection.h):
//
// favor_positive (FAVOR+; Choromanski et al. 2021, arXiv:2009.14794, lemma 1), c = m:
//   phi_j(x) = m^-1/2 exp(w_j . x' - ||x'||^2 / 2)
// favor_hyperbolic (the same, lemma 1), c = 2m:
//   phi(x) = (2m)^-1/2 [exp(w_j . x' - ||x'||^2 / 2), exp(-w_j . x' - ||x'||^2 / 2)]
// favor_sharp (GERF of Likhosherstov et al. 2022, arXiv:2205.15317, theorem 3.1, with the rescaling
// of FAVOR#, arXiv:2302.00787), c = m, for A < 1/8, B = sqrt(1 - 4A), D = (1 - 4A)^(d/4):
//   phi_j(x) = m^-1/2 D exp(A ||w_j||^2 + B w_j . x' - ||x'||^2 / 2)
// with queries times psi and keys divided by psi, component by component, before. E over w of
// phi(q) . phi(k) is exp(scale q . k): the Gaussian integral of exp(2A ||w||^2 + B w . (q' + k'))
// is D^-2 exp(||q' + k'||^2 / 2) exactly when B^2 = 1 - 4A. A < 0 bounds the features, which lowers
// the variance where q' + k' is long; A and psi are chosen once from samples of queries and keys
// and stay as they are.
//
// Denominator: positive. Features span far more than f32's range and come scaled: a row's largest
// is in (1/2, 1], so there is no stabiliser to be taken over a whole sequence. Error against the
// definition with f64: about 1e-6 of the row's largest feature, from the projection's rounding.
// Against exp(scale q . k): statistical, and large where ||q' + k'||^2 exceeds ln m.
// Overflow: a row with ||x'||^2 or w . x' beyond 2^27 or so gets NaNs.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/log_features.h"
#include "engine/linear/projection.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

class Favor final : public FeatureMap {
 public:
  // `hyperbolic` with sharpness 0 only. `scales`: psi; empty: ones.
  Favor(Projection projection, bool hyperbolic, double scale, double sharpness,
        const std::vector<float>& scales)
      : projection_(std::move(projection)), hyperbolic_(hyperbolic) {
    const auto d = static_cast<std::size_t>(projection_.dim());
    const double root = std::sqrt(scale);
    key_factors_.assign(d, static_cast<float>(root));
    // Queries come multiplied by the scale.
    query_factors_.assign(d, static_cast<float>(1 / root));
    for (std::size_t i = 0; i < scales.size(); ++i) {
      key_factors_[i] = static_cast<float>(root / static_cast<double>(scales[i]));
      query_factors_[i] = static_cast<float>(static_cast<double>(scales[i]) / root);
    }
    slope_ = static_cast<float>(std::sqrt(1 - 4 * sharpness));
    for (std::int64_t j = 0; j < projection_.count(); ++j) {
      offsets_.push_back(static_cast<float>(sharpness * projection_.norm_squared(j)));
    }
    constant_ = static_cast<double>(d) / 4 * std::log1p(-4 * sharpness) -
                std::log(static_cast<double>(feature_dim())) / 2;
  }

  std::int64_t feature_dim() const override {
    return hyperbolic_ ? 2 * projection_.count() : projection_.count();
  }
  KernelSign sign() const override { return KernelSign::kPositive; }
  bool scaled() const override { return true; }
  const Projection* projection() const override { return &projection_; }

  void MapKeys(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const override {
    Map(rows, key_factors_, out, scratch);
  }
  void MapQueries(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const override {
    Map(rows, query_factors_, out, scratch);
  }

 private:
  void Map(const MapRows& rows, const std::vector<float>& factors, const MapFeatures& out,
           Scratch& scratch) const {
    const Scratch::Frame frame(scratch);
    const ProjectedRows projected = ProjectRows(projection_, rows, factors, scratch);
    const std::int64_t m = projection_.count();
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const float* dots = projected.dots + i * projection_.columns();
      float* features = out.features + i * out.stride;
      for (std::int64_t j = 0; j < m; ++j) {
        features[j] = slope_ * dots[j] + offsets_[static_cast<std::size_t>(j)];
      }
      for (std::int64_t j = 0; hyperbolic_ && j < m; ++j) features[m + j] = -dots[j];
      out.exponents[i] =
          ExpFeatures(constant_ - projected.norms_squared[static_cast<std::size_t>(i)] / 2,
                      features, feature_dim());
    }
  }

  Projection projection_;
  bool hyperbolic_;
  std::vector<float> key_factors_;
  std::vector<float> query_factors_;
  float slope_ = 1.0F;          // B
  std::vector<float> offsets_;  // A ||w_j||^2
  double constant_ = 0;         // ln of all that a row's features have in common, but for ||x'||
};

FeatureMapOr MakeFavor(const FeatureMapConfig& config, const LayerShape& shape, bool hyperbolic) {
  absl::StatusOr<Projection> projection = MakeProjection(config, shape);
  if (!projection.ok()) return projection.status();
  return std::make_unique<Favor>(*std::move(projection), hyperbolic,
                                 static_cast<double>(shape.scale),
                                 static_cast<double>(config.sharpness), config.key_scales);
}

}  // namespace

FeatureMapOr MakeFavorPositive(const FeatureMapConfig& config, const LayerShape& shape) {
  absl::Status status = RejectParameters(config, kRandomFeatures);
  return status.ok() ? MakeFavor(config, shape, /*hyperbolic=*/false) : status;
}

FeatureMapOr MakeFavorHyperbolic(const FeatureMapConfig& config, const LayerShape& shape) {
  absl::Status status = RejectParameters(config, kRandomFeatures);
  return status.ok() ? MakeFavor(config, shape, /*hyperbolic=*/true) : status;
}

FeatureMapOr MakeFavorSharp(const FeatureMapConfig& config, const LayerShape& shape) {
  absl::Status status = RejectParameters(config, kRandomFeatures | kSharpness | kKeyScales);
  if (!status.ok()) return status;
  constexpr float kMaxSharpness = 0.125F;
  if (!(config.sharpness < kMaxSharpness) || !std::isfinite(config.sharpness)) {
    return absl::InvalidArgumentError(absl::StrCat("feature_map.sharpness is ", config.sharpness,
                                                   "; it must be finite and below 1/8"));
  }
  const auto scales = static_cast<std::int64_t>(config.key_scales.size());
  if (scales != 0 && scales != shape.key_dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("feature_map.key_scales holds ", scales,
                     " numbers; it must hold one per component of a key, ", shape.key_dim));
  }
  for (const float scale : config.key_scales) {
    if (!(scale >= std::numeric_limits<float>::min()) || !std::isfinite(1 / scale)) {
      return absl::InvalidArgumentError(absl::StrCat("feature_map.key_scales holds ", scale,
                                                     "; each must be positive and finite"));
    }
  }
  return MakeFavor(config, shape, /*hyperbolic=*/false);
}

}  // namespace attnd::engine
