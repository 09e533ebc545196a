// Feature maps phi of linear attention, and their registry.
//
// Linear attention replaces exp(q . k) by phi(q) . phi(k) for a map phi from d to c numbers, so
// that sums over keys can be taken once for all queries (Katharopoulos et al. 2020,
// arXiv:2006.16236). The maps of keys and queries may differ.
//
// To add a map to the engine: one file engine/linear/<name>.cc that opens with its definition,
// paper, c, the sign of the denominator and its error behaviour, and defines a factory; the
// factory's declaration at the end of this header; its line in the table of registry.cc. Server and
// client know it by its name in the contract's FeatureMapKind.
//
// Thread safety: maps are immutable; every function may be called from any thread. Mapping cannot
// fail: an overflow shows as an infinity in the features, which sealing and answering look for.
#ifndef ATTND_ENGINE_LINEAR_FEATURE_MAP_H_
#define ATTND_ENGINE_LINEAR_FEATURE_MAP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine_config.h"

namespace attnd::engine {

// What is known of phi(q) . phi(k), hence of the denominator phi(q) Z.
enum class KernelSign {
  kPositive,     // greater than 0 wherever features do not underflow
  kNonNegative,  // may be exactly 0
  kSigned,       // may be negative: the numerator must not be divided by it
};

class FeatureMap {
 public:
  virtual ~FeatureMap() = default;

  // c: numbers per feature row.
  virtual std::int64_t feature_dim() const = 0;
  virtual KernelSign sign() const = 0;

  // Rows [n, d], `stride` floats apart, to features [n, c], `feature_stride` floats apart. A row's
  // features depend on that row alone, bit for bit. The arrays do not overlap. Query rows come
  // multiplied by the layer's scale.
  virtual void MapKeys(const float* rows, std::int64_t stride, std::int64_t n, float* features,
                       std::int64_t feature_stride) const = 0;
  virtual void MapQueries(const float* rows, std::int64_t stride, std::int64_t n, float* features,
                          std::int64_t feature_stride) const = 0;
};

// The map that `config` names, for keys of `key_dim` numbers. InvalidArgument for a name that is
// not in the registry (the message lists those that are) and for a parameter the map does not take.
absl::StatusOr<std::unique_ptr<const FeatureMap>> MakeFeatureMap(const FeatureMapConfig& config,
                                                                 std::int64_t key_dim);

// The names of the registry, separated by ", ".
std::string FeatureMapNames();

// InvalidArgument unless feature_map.epsilon is 0: for maps without that parameter.
absl::Status RejectEpsilon(const FeatureMapConfig& config);

using FeatureMapOr = absl::StatusOr<std::unique_ptr<const FeatureMap>>;
FeatureMapOr MakeEluPlusOne(const FeatureMapConfig& config, std::int64_t key_dim);
FeatureMapOr MakeIdentity(const FeatureMapConfig& config, std::int64_t key_dim);
FeatureMapOr MakeRelu(const FeatureMapConfig& config, std::int64_t key_dim);
FeatureMapOr MakeSquaredRelu(const FeatureMapConfig& config, std::int64_t key_dim);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_FEATURE_MAP_H_
