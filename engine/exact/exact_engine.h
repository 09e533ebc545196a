// Softmax attention, evaluated exactly: softmax(scale q k^T) v over all visible tokens, or over the
// newest ones: with a sliding window of w tokens a query that sees tokens [0, p) is answered from
// [max(0, p - w), p).
//
// Keys and values are kept as they are (f32, or rounded once to bfloat16) and read in full by every
// query. Numerics: f32 products and sums in a fixed order (exact_plan.h), exponentials within 2
// ulp; a weight below exp(-87.33) of the largest is 0. Promise: a row's bits depend on nothing but
// the visible tokens and the query row. Thread safety and failures: engine.h.
#ifndef ATTND_ENGINE_EXACT_EXACT_ENGINE_H_
#define ATTND_ENGINE_EXACT_EXACT_ENGINE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/engine_config.h"

namespace attnd::engine {

// `shape` and `window_tokens` are valid (MakeEngine checks them); 0: no window. INVALID_ARGUMENT
// for a storage other than kF32 and kBf16.
absl::StatusOr<std::unique_ptr<const Engine>> MakeExactEngine(const LayerShape& shape,
                                                              const ExactConfig& config,
                                                              std::int64_t window_tokens = 0);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_EXACT_ENGINE_H_
