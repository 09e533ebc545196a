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
// fail: an overflow shows as an infinity or a NaN in the features, which sealing and answering look
// for.
#ifndef ATTND_ENGINE_LINEAR_FEATURE_MAP_H_
#define ATTND_ENGINE_LINEAR_FEATURE_MAP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/block.h"
#include "engine/engine_config.h"
#include "engine/scratch.h"

namespace attnd::engine {

// What is known of phi(q) . phi(k), hence of the denominator phi(q) Z.
enum class KernelSign {
  kPositive,     // greater than 0 wherever features do not underflow
  kNonNegative,  // may be exactly 0
  kEstimated,    // estimates a positive number and may miss it: the guard's policy decides
  kSigned,       // may be negative: the numerator must not be divided by it
};

// Rows to map. Borrowed.
struct MapRows {
  const float* rows = nullptr;  // [count, d], `stride` floats apart
  std::int64_t stride = 0;
  std::int64_t count = 0;
  std::int64_t head = 0;                    // kv-head of keys, query head of queries
  const std::int64_t* positions = nullptr;  // [count], where they stand; read if positional()
};

// Where features go: [count, c], `stride` floats apart. A row's features are what is written times
// 2 to the power of its exponent. Borrowed.
struct MapFeatures {
  float* features = nullptr;
  std::int64_t stride = 0;
  std::int32_t* exponents = nullptr;  // [count], written if scaled()
};

class Projection;

class FeatureMap {
 public:
  virtual ~FeatureMap() = default;

  // c: numbers per feature row.
  virtual std::int64_t feature_dim() const = 0;
  virtual KernelSign sign() const = 0;

  // Whether features depend on where a row stands; queries then need positions too.
  virtual bool positional() const { return false; }
  // Whether features come with a power of two per row, because their range exceeds that of f32. The
  // largest feature of a row is then about 1 in magnitude, and exponents are within
  // kMaxExponent (row_exponents.h); a row that needs a larger one gets NaNs.
  virtual bool scaled() const { return false; }
  // Whether heads have parameters of their own.
  virtual bool per_head() const { return false; }

  // Multiply-adds of mapping a row beyond a few for each feature.
  virtual std::int64_t operations() const { return 0; }

  // The random projection whose bytes the features depend on; null for other maps.
  virtual const Projection* projection() const { return nullptr; }

  // A row's features depend on that row, its position and its head alone, bit for bit. The arrays
  // do not overlap. Query rows come multiplied by the layer's scale.
  virtual void MapKeys(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const = 0;
  virtual void MapQueries(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const = 0;
};

using FeatureMapOr = absl::StatusOr<std::unique_ptr<const FeatureMap>>;

// The map that `config` names, for keys of a layer of this shape. InvalidArgument for a name that
// is not in the registry (the message lists those that are) and for a parameter that is out of
// range or that the map does not take.
FeatureMapOr MakeFeatureMap(const FeatureMapConfig& config, const LayerShape& shape);

// The names of the registry, separated by ", ".
std::string FeatureMapNames();

// The parameters of FeatureMapConfig, as bits.
enum Parameter : unsigned {
  kNoParameter = 0,
  kEpsilon = 1,
  kNu = 2,
  kHorizon = 4,
  kRandomFeatures = 8,  // features and seed
  kSharpness = 16,
  kKeyScales = 32,
  kWeights = 64,
};

// InvalidArgument where a parameter outside of `taken` is not at its default.
absl::Status RejectParameters(const FeatureMapConfig& config, unsigned taken);

FeatureMapOr MakeCosformer(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeDpfp(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeEluPlusOne(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeFavorHyperbolic(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeFavorPositive(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeFavorSharp(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeIdentity(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeLearned(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeRandomFourier(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeRelu(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeSquaredRelu(const FeatureMapConfig& config, const LayerShape& shape);
FeatureMapOr MakeTaylor(const FeatureMapConfig& config, const LayerShape& shape);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_FEATURE_MAP_H_
