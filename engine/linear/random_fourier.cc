// random_fourier: with x' = sqrt(scale) x and projections w_1 ... w_m (projection.h), c = 2m,
//   phi(x) = m^-1/2 exp(||x'||^2 / 2) [cos(w_j . x'), sin(w_j . x')]
// (Rahimi and Recht 2007; as attention: Peng et al. 2021, arXiv:2103.02143, and the sin/cos form of
// Choromanski et al. 2021, arXiv:2009.14794). phi(q) . phi(k) estimates exp(scale q . k) without
// bias.
//
// Denominator: an estimate of a positive number that may come out 0 or negative, the more often the
// longer q' and k' are (44 % of draws at ||q'|| = ||k'|| = 2, m = 64), so what happens then is the
// session's guard policy: strict gives zeros and the flag non-positive. The positive maps of
// favor.cc do not have this and vary less. Features come scaled by a power of two per row.
// Error against the definition with f64: about 1e-6 of the row's largest feature. Overflow: a row
// with a projection beyond 39,000 in magnitude, where the reduction of the angle ends, gets NaNs.
#include <cmath>
#include <limits>
#include <utility>

#include "engine/linear/feature_map.h"
#include "engine/linear/log_features.h"
#include "engine/linear/random_map.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

class RandomFourier final : public RandomMap {
 public:
  RandomFourier(Projection projection, double scale)
      : RandomMap(std::move(projection), scale),
        constant_(-std::log(static_cast<double>(projections())) / 2) {}

  std::int64_t feature_dim() const override { return 2 * projections(); }
  KernelSign sign() const override { return KernelSign::kEstimated; }

 private:
  std::int32_t MapRow(const float* dots, double norm_squared, float* features) const override {
    const std::int64_t m = projections();
    const RowFactor factor = SplitFactor(constant_ + norm_squared / 2);
    const float common = MaxAbs(dots, m) <= kMaxAngle ? std::exp(factor.log_factor)
                                                      : std::numeric_limits<float>::quiet_NaN();
    CosSin(dots, features, features + m, m);
    ScaleRow(features, common, features, 2 * m);
    return factor.exponent;
  }

  double constant_;  // ln m^-1/2
};

}  // namespace

FeatureMapOr MakeRandomFourier(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kRandomFeatures); !status.ok()) return status;
  absl::StatusOr<Projection> projection = MakeProjection(config, shape);
  if (!projection.ok()) return projection.status();
  return std::make_unique<RandomFourier>(*std::move(projection), static_cast<double>(shape.scale));
}

}  // namespace attnd::engine
