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
#include <vector>

#include "engine/linear/feature_map.h"
#include "engine/linear/log_features.h"
#include "engine/linear/projection.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

class RandomFourier final : public FeatureMap {
 public:
  RandomFourier(Projection projection, double scale)
      : projection_(std::move(projection)),
        key_factors_(static_cast<std::size_t>(projection_.dim()),
                     static_cast<float>(std::sqrt(scale))),
        query_factors_(static_cast<std::size_t>(projection_.dim()),
                       static_cast<float>(1 / std::sqrt(scale))),
        constant_(-std::log(static_cast<double>(projection_.count())) / 2) {}

  std::int64_t feature_dim() const override { return 2 * projection_.count(); }
  KernelSign sign() const override { return KernelSign::kEstimated; }
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
      float* features = out.features + i * out.stride;
      const float* dots = projected.dots + i * projection_.columns();
      const RowFactor factor =
          SplitFactor(constant_ + projected.norms_squared[static_cast<std::size_t>(i)] / 2);
      out.exponents[i] = factor.exponent;
      const float common = MaxAbs(dots, m) <= kMaxAngle ? std::exp(factor.log_factor)
                                                        : std::numeric_limits<float>::quiet_NaN();
      CosSin(dots, features, features + m, m);
      ScaleRow(features, common, features, 2 * m);
    }
  }

  Projection projection_;
  std::vector<float> key_factors_;
  std::vector<float> query_factors_;
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
