// squared_relu: phi(x) = max(x, 0)^2 (So et al. 2021, arXiv:2109.08668, as an activation), c = d.
//
// Denominator: not negative; exactly 0 for a query and keys without a common positive component.
// Error: one rounding per feature. Overflow: features are infinite for x > 1.8e19, far inside the
// range of finite input, so that keys are refused and queries flagged.
#include "engine/linear/elementwise_map.h"
#include "engine/linear/feature_map.h"
#include "engine/simd/maps.h"

namespace attnd::engine {

FeatureMapOr MakeSquaredRelu(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kNoParameter); !status.ok()) return status;
  return MakeElementwiseMap(shape.key_dim, KernelSign::kNonNegative,
                            [](const float* x, float* y, std::int64_t n) { SquaredRelu(x, y, n); });
}

}  // namespace attnd::engine
