// The slow and obvious definition of what the exact engine computes: softmax in two passes, one
// query row at a time, everything in f64. Tests hold the engine against it. Thread-safe; cannot
// fail.
#ifndef ATTND_ENGINE_EXACT_REF_EXACT_H_
#define ATTND_ENGINE_EXACT_REF_EXACT_H_

#include <cstdint>

#include "engine/block.h"

namespace attnd::engine {

// For one query row [d_k] of query head `query_head` over the first `tokens` rows of keys [., H,
// d_k] and values [., H, d_v], leaving out those with masked[t] != 0 (null: none): writes the
// output [d_v] and returns the log-normalizer. No token to see: zeros, -inf.
double RefExactRow(const LayerShape& shape, const float* query, std::int64_t query_head,
                   const float* keys, const float* values, const std::uint8_t* masked,
                   std::int64_t tokens, double* output);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_REF_EXACT_H_
