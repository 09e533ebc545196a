// relu: phi(x) = max(x, 0) + epsilon (the learned-free form of T2R, Kasai et al. 2021,
// arXiv:2103.13076, and of Performer-ReLU, Choromanski et al. 2021, arXiv:2009.14794), c = d.
//
// Denominator: not negative; exactly 0 for a query and keys without a common positive component
// when epsilon is 0. A positive epsilon makes it positive and adds a floor of uniform attention,
// epsilon^2 * c per token. Error: exact for epsilon 0, else one rounding per feature. Overflow:
// only through sums.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/linear/elementwise_map.h"
#include "engine/linear/feature_map.h"
#include "engine/simd/maps.h"

namespace attnd::engine {

FeatureMapOr MakeRelu(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kEpsilon); !status.ok()) return status;
  const float epsilon = config.epsilon;
  if (!(std::isfinite(epsilon) && epsilon >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("feature_map.epsilon is ", epsilon, "; it must be finite and at least 0"));
  }
  return MakeElementwiseMap(
      shape.key_dim, epsilon > 0 ? KernelSign::kPositive : KernelSign::kNonNegative,
      [epsilon](const float* x, float* y, std::int64_t n) { Relu(x, epsilon, y, n); });
}

}  // namespace attnd::engine
