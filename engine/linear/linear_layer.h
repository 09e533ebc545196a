// What the engines of the linear family know of a layer: its shape, its configuration, its feature
// map, and the sizes that follow from them.
//
// Immutable; any thread.
#ifndef ATTND_ENGINE_LINEAR_LINEAR_LAYER_H_
#define ATTND_ENGINE_LINEAR_LINEAR_LAYER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/block.h"
#include "engine/engine_config.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/linear_state.h"
#include "engine/scratch.h"

namespace attnd::engine {

struct LinearLayer {
  LayerShape shape;
  LinearConfig config;
  std::unique_ptr<const FeatureMap> map;  // null: the engine maps rows itself
  LinearDims dims;
};

// Requires a valid shape (MakeEngine checks it). InvalidArgument where a field of the configuration
// is out of range, the map has a signed denominator and the layer is normalised, or S and Z of the
// layer would have more than kMaxSums numbers.
absl::StatusOr<LinearLayer> MakeLinearLayer(const LayerShape& shape, const LinearConfig& config);

// Numbers of S and Z of a layer, and of the features of a block. Sealing a block is one piece of
// work: at this size about 10 ms, at the sizes of language models (64 heads of 128) about 1.
inline constexpr std::int64_t kMaxSums = 1 << 23;

// InvalidArgument where a layer whose keys have `features` features would have more. `factor`: how
// much more than a product what is done with them costs.
absl::Status CheckSums(const LayerShape& shape, const LinearDims& dims, std::int64_t features,
                       std::int64_t factor = 1);

// Token rows whose keys are to be mapped: the first stands at `position`. Borrowed.
struct KeyRows {
  const float* keys = nullptr;  // [count, H, d_k]
  std::int64_t count = 0;       // at most 64
  std::int64_t position = 0;
  RowMask valid = 0;  // bit 0 is the first row
};

// Features of the rows' keys of one kv-head, [count x dims.features], and, of a map that is scaled,
// their exponents [count]. Features beyond c and of masked rows are zeros.
void MapKeyRows(const LinearLayer& layer, const KeyRows& rows, std::int64_t head, float* features,
                std::int32_t* exponents, Scratch& scratch);

// What a failed fold is reported as; `what` names the tokens.
absl::Status SumsOverflow(const char* what, std::int64_t head);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_LINEAR_LAYER_H_
