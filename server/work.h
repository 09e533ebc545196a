// How much a message makes the server compute, estimated from its sizes before it is queued, and
// what is little enough to be done on the thread on which the message arrived.
//
// Handing a job to a worker costs two changes of threads, 50 to 100 us where the worker slept, and
// takes the data of a large message from one core's cache to another's.
#ifndef ATTND_SERVER_WORK_H_
#define ATTND_SERVER_WORK_H_

#include <algorithm>
#include <cstdint>

#include "engine/engine.h"

namespace attnd::server {

// In multiply-adds; saturates far above every limit.
using Operations = std::int64_t;

// About ten microseconds of a core: less than handing it over would cost.
inline constexpr Operations kBriefOperations = 1 << 17;
// About half a millisecond: the Append of 1 MiB to one head of d = 64.
inline constexpr Operations kShortOperations = 1 << 24;

namespace internal {
inline Operations Product(Operations a, Operations b) {
  constexpr Operations kMax = Operations{1} << 60;
  Operations product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMax : std::min(product, kMax);
}
}  // namespace internal

// Queries (token rows with all their heads) against a layer at `position`.
inline Operations AttendOperations(const engine::Engine& engine, std::int64_t position,
                                   std::int64_t queries) {
  const engine::LayerShape& shape = engine.shape();
  // An engine that keeps no tokens reads its features and the open block instead.
  const std::int64_t rows =
      engine.bytes_per_token() > 0 ? position : engine.feature_dim() + engine::kBlockTokens;
  return internal::Product(internal::Product(queries, std::max<std::int64_t>(rows, 1)),
                           shape.query_heads * (shape.key_dim + shape.value_dim));
}

// Tokens that are checked, digested, and copied or folded.
inline Operations AppendOperations(const engine::Engine& engine, std::int64_t tokens) {
  // A float that passes through memory a few times takes as long as that many multiply-adds.
  constexpr Operations kPerFloat = 16;
  const engine::LayerShape& shape = engine.shape();
  return internal::Product(tokens, kPerFloat * (shape.key_row() + shape.value_row()) +
                                       shape.kv_heads * engine.feature_dim() * shape.value_dim);
}

}  // namespace attnd::server

#endif  // ATTND_SERVER_WORK_H_
