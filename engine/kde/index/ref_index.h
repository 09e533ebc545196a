// The slow and obvious definition of an index answer: one query row of one head at a time, scalar
// loops, in the order that index_plan.h gives. Tests hold the engine against its bits, and switch
// its stages off to see that each is worth something. Not for many keys.
//
// Not thread-safe where two calls share scratch; cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_REF_INDEX_H_
#define ATTND_ENGINE_KDE_INDEX_REF_INDEX_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/kde/index/index_state.h"

namespace attnd::engine {

struct RefIndexStages {
  bool metric = true;     // u = q^T P q; else |q|^2
  bool ratios = true;     // masses corrected as the span's own keys taught
  bool slopes = true;     // values follow keys within leaves
  bool selection = true;  // leaves are read by predicted error; else none but the own one
  bool own_leaf = true;   // the query's own token's leaf is always read
};

struct RefIndexQuery {
  const float* row = nullptr;  // [d_k], not yet scaled
  std::int64_t head = 0;       // of queries
  std::int64_t position = -1;  // of the query's own token; -1: none
  std::int64_t threshold = 0;
};

// Over all of `state` and the tail: writes the output [d_v], zeros where nothing is visible or
// arithmetic overflows, and returns the log-normalizer as the exact engine gives it.
float RefIndexRow(const LayerShape& shape, const IndexState& state, const TailView& tail,
                  const RefIndexQuery& query, const RefIndexStages& stages, float* output);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_REF_INDEX_H_
