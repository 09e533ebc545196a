// identity: phi(x) = x (linear attention without a map, as in Schlag et al. 2021, arXiv:2102.11174,
// section 3, and in retention, Sun et al. 2023, arXiv:2307.08621), c = d.
//
// Denominator: signed, so it can be near 0 or negative by chance; the map requires an unnormalised
// layer. Error: none. Overflow: only through sums.
#include <cstring>

#include "engine/linear/elementwise_map.h"
#include "engine/linear/feature_map.h"

namespace attnd::engine {

FeatureMapOr MakeIdentity(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kNoParameter); !status.ok()) return status;
  return MakeElementwiseMap(shape.key_dim, KernelSign::kSigned,
                            [](const float* x, float* y, std::int64_t n) {
                              std::memcpy(y, x, static_cast<std::size_t>(n) * sizeof(float));
                            });
}

}  // namespace attnd::engine
