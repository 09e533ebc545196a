// dpfp: deterministic parameter-free projection (Schlag et al. 2021, arXiv:2102.11174, eq. 37).
// With u = [relu(x), relu(-x)], 2 d numbers, c = 2 d nu:
//   phi(x)[(j - 1) 2d + i] = u[i] u[(i - j) mod 2d]   for j = 1 ... nu
//
// Denominator: not negative; exactly 0 where query and keys share no product. Error: one rounding
// per feature. Overflow: to infinity for components beyond 1.8e19.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/linear/feature_map.h"

namespace attnd::engine {
namespace {

class Dpfp final : public FeatureMap {
 public:
  Dpfp(std::int64_t dim, std::int64_t nu) : dim_(dim), nu_(nu) {}

  std::int64_t feature_dim() const override { return 2 * dim_ * nu_; }
  KernelSign sign() const override { return KernelSign::kNonNegative; }

  void MapKeys(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const override {
    Map(rows, out, scratch);
  }
  void MapQueries(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const override {
    Map(rows, out, scratch);
  }

 private:
  void Map(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const {
    const Scratch::Frame frame(scratch);
    const std::int64_t width = 2 * dim_;
    float* u = scratch.Take(width);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      const float* x = rows.rows + i * rows.stride;
      for (std::int64_t k = 0; k < dim_; ++k) {
        u[k] = std::max(x[k], 0.0F);
        u[dim_ + k] = std::max(-x[k], 0.0F);
      }
      float* features = out.features + i * out.stride;
      for (std::int64_t j = 1; j <= nu_; ++j, features += width) {
        for (std::int64_t k = 0; k < j; ++k) features[k] = u[k] * u[k + width - j];
        for (std::int64_t k = j; k < width; ++k) features[k] = u[k] * u[k - j];
      }
    }
  }

  std::int64_t dim_;
  std::int64_t nu_;
};

}  // namespace

FeatureMapOr MakeDpfp(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kNu); !status.ok()) return status;
  const std::int64_t most = 2 * shape.key_dim - 1;
  if (config.nu < 1 || config.nu > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("feature_map.nu is ", config.nu, "; it must be 1 to 2 key_dim - 1 = ", most));
  }
  return std::make_unique<Dpfp>(shape.key_dim, config.nu);
}

}  // namespace attnd::engine
