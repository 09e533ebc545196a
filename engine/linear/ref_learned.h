// The slow and obvious form of the learned maps (learned.cc): one row, plain scalar loops, one
// number at a time. The engine is held to its bits. Any thread; cannot fail.
#ifndef ATTND_ENGINE_LINEAR_REF_LEARNED_H_
#define ATTND_ENGINE_LINEAR_REF_LEARNED_H_

#include <cstdint>
#include <vector>

#include "engine/linear/map_weights.h"

namespace attnd::engine {

struct RefFeatures {
  std::vector<float> features;  // [c]
  std::int32_t exponent = 0;    // of activations that are scaled
};

// phi(x) of a key row x [d] of a kv-head, and of a query row of a query head.
RefFeatures RefLearnedKey(const MapWeights& weights, std::int64_t head, const float* x);
RefFeatures RefLearnedQuery(const MapWeights& weights, std::int64_t head, const float* x);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_REF_LEARNED_H_
