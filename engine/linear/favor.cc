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
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/log_features.h"
#include "engine/linear/random_map.h"

namespace attnd::engine {
namespace {

class Favor final : public RandomMap {
 public:
  // `hyperbolic` with sharpness 0 only. `scales`: psi; empty: ones.
  Favor(Projection projection, bool hyperbolic, double scale, double sharpness,
        const std::vector<float>& scales)
      : RandomMap(std::move(projection), scale, scales),
        hyperbolic_(hyperbolic),
        slope_(static_cast<float>(std::sqrt(1 - 4 * sharpness))) {
    for (std::int64_t j = 0; j < projections(); ++j) {
      offsets_.push_back(static_cast<float>(sharpness * RandomMap::projection()->norm_squared(j)));
    }
    const auto d = static_cast<double>(RandomMap::projection()->dim());
    constant_ = d / 4 * std::log1p(-4 * sharpness) -
                std::log(static_cast<double>(projections() * (hyperbolic ? 2 : 1))) / 2;
  }

  std::int64_t feature_dim() const override { return projections() * (hyperbolic_ ? 2 : 1); }
  KernelSign sign() const override { return KernelSign::kPositive; }

 private:
  std::int32_t MapRow(const float* dots, double norm_squared, float* features) const override {
    const std::int64_t m = projections();
    for (std::int64_t j = 0; j < m; ++j) {
      features[j] = slope_ * dots[j] + offsets_[static_cast<std::size_t>(j)];
    }
    for (std::int64_t j = 0; hyperbolic_ && j < m; ++j) features[m + j] = -dots[j];
    return ExpFeatures(constant_ - norm_squared / 2, features, feature_dim());
  }

  bool hyperbolic_;
  float slope_;                 // B
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
