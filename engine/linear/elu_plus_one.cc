// elu_plus_one: phi(x) = x + 1 for x > 0, exp(x) otherwise (Katharopoulos et al. 2020,
// arXiv:2006.16236, eq. 7), c = d.
//
// Denominator: positive; phi underflows to 0 only below x = -87.33. Error: at most 2 ulp per
// feature, because exp(x) is computed as such; elu(x) and then + 1 would lose the tail (a relative
// error of 2.6e-2 at x = -15, exactly 0 below -17.3, and so a session of strongly negative keys
// with a denominator of 0). Overflow: only through sums, features are at most FLT_MAX.
#include "engine/linear/elementwise_map.h"
#include "engine/linear/feature_map.h"
#include "engine/simd/maps.h"

namespace attnd::engine {

FeatureMapOr MakeEluPlusOne(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kNoParameter); !status.ok()) return status;
  return MakeElementwiseMap(shape.key_dim, KernelSign::kPositive,
                            [](const float* x, float* y, std::int64_t n) { EluPlusOne(x, y, n); });
}

}  // namespace attnd::engine
