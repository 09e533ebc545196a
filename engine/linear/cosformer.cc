// cosformer: phi(x) at position i is relu(x) [cos(pi i / 2M), sin(pi i / 2M)] (Qin et al. 2022,
// arXiv:2202.08791, eq. 10 and 11), c = 2 d, so that phi(q) . phi(k) = relu(q) . relu(k)
// cos(pi (i - j) / 2M). M, the horizon, is fixed when the session is created (the paper takes the
// length of each call, which cannot be streamed).
//
// Positional: queries need the positions at which they stand. Denominator: not negative while no
// token is further than M from the query; beyond, weights and the denominator may be negative, and
// the session's guard policy says what happens. Error: 2 roundings per feature; the angle is
// computed in f64 from i modulo 4M, so it does not drift with i.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "engine/linear/feature_map.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// Positions modulo 4M are exact in f64.
constexpr std::int64_t kMaxHorizon = std::int64_t{1} << 48;

class Cosformer final : public FeatureMap {
 public:
  Cosformer(std::int64_t dim, std::int64_t horizon) : dim_(dim), horizon_(horizon) {}

  std::int64_t feature_dim() const override { return 2 * dim_; }
  KernelSign sign() const override { return KernelSign::kEstimated; }
  bool positional() const override { return true; }

  void MapKeys(const MapRows& rows, const MapFeatures& out, Scratch& /*scratch*/) const override {
    Map(rows, out);
  }
  void MapQueries(const MapRows& rows, const MapFeatures& out,
                  Scratch& /*scratch*/) const override {
    Map(rows, out);
  }

 private:
  void Map(const MapRows& rows, const MapFeatures& out) const {
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const auto turn = static_cast<double>(rows.positions[i] % (4 * horizon_));
      const double angle = std::numbers::pi / 2 * (turn / static_cast<double>(horizon_));
      float* features = out.features + i * out.stride;
      Relu(rows.rows + i * rows.stride, 0.0F, features, dim_);
      ScaleRow(features, static_cast<float>(std::sin(angle)), features + dim_, dim_);
      ScaleRow(features, static_cast<float>(std::cos(angle)), features, dim_);
    }
  }

  std::int64_t dim_;
  std::int64_t horizon_;
};

}  // namespace

FeatureMapOr MakeCosformer(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kHorizon); !status.ok()) return status;
  if (config.horizon < 1 || config.horizon > kMaxHorizon) {
    return absl::InvalidArgumentError(
        absl::StrCat("feature_map.horizon is ", config.horizon, "; it must be 1 to ", kMaxHorizon));
  }
  return std::make_unique<Cosformer>(shape.key_dim, config.horizon);
}

}  // namespace attnd::engine
