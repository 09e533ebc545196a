// taylor: the second-order Taylor expansion of exp(scale q . k) (Arora et al. 2024,
// arXiv:2402.18668, section 3.1), packed: with x' = sqrt(scale) x,
//   phi(x) = [1, x'_1 ... x'_d, x'_a x'_a / sqrt(2) and x'_a x'_b for a < b], a ascending
// c = 1 + d + d (d + 1) / 2, so that phi(q) . phi(k) = 1 + s + s^2 / 2 for s = scale q . k.
//
// Denominator: positive, at least half the number of tokens, since 1 + s + s^2 / 2 = ((1 + s)^2 +
// 1) / 2. Features are signed. Error: 2 roundings per feature; the sum cancels where s is near -1.
// Overflow: to infinity for components beyond 1.8e19 / sqrt(scale).
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"
#include "engine/linear/feature_map.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

class Taylor final : public FeatureMap {
 public:
  Taylor(std::int64_t dim, float scale)
      : dim_(dim), key_factor_(std::sqrt(scale)), query_factor_(1 / std::sqrt(scale)) {}

  std::int64_t feature_dim() const override { return 1 + dim_ + dim_ * (dim_ + 1) / 2; }
  KernelSign sign() const override { return KernelSign::kPositive; }

  void MapKeys(const MapRows& rows, const MapFeatures& out, Scratch& /*scratch*/) const override {
    Map(rows, key_factor_, out);
  }
  void MapQueries(const MapRows& rows, const MapFeatures& out,
                  Scratch& /*scratch*/) const override {
    Map(rows, query_factor_, out);
  }

 private:
  void Map(const MapRows& rows, float factor, const MapFeatures& out) const {
    constexpr float kSqrtHalf = static_cast<float>(1 / std::numbers::sqrt2);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      float* features = out.features + i * out.stride;
      features[0] = 1.0F;
      float* x = features + 1;
      ScaleRow(rows.rows + i * rows.stride, factor, x, dim_);
      float* products = x + dim_;
      PairProducts(x, dim_, products);
      for (std::int64_t a = 0; a < dim_; ++a) {
        *products *= kSqrtHalf;
        products += dim_ - a;
      }
    }
  }

  std::int64_t dim_;
  float key_factor_;
  float query_factor_;
};

}  // namespace

FeatureMapOr MakeTaylor(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kNoParameter); !status.ok()) return status;
  if (!(shape.scale > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale is ", shape.scale, "; it must be positive for ", config.name));
  }
  return std::make_unique<Taylor>(shape.key_dim, shape.scale);
}

}  // namespace attnd::engine
