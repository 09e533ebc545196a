// What can be said of 64 keys without reading them again, for queries q near a centre q0 that they
// are summarised about.
//
// With weights a_j = exp(q0 . k_j), normalised to 1, the mass of the keys is
//   sum_j exp(q . k_j) = exp(L + q0 . mu) sum_j a_j exp((q - q0) . k_j), L = ln sum exp(q0 . k_j) -
//   q0 . mu,
// so that with weighted means, L for the logarithm of the count, and q - q0 for q in second-order
// terms everything that holds of plain means (engine/simd/leaf_selection.h) holds here, Jensen's
// bound and the radius's included, and is the more exact the nearer q is to q0. Queries of one head
// have something in common: about the mean key, 16,384 word vectors read 3.0 % of their keys
// instead of 4.8 % at equal errors (threshold 1/256).
//
// Sums in f64 (engine/simd/leaf_sums.h). Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_KDE_INDEX_LEAF_SUMMARY_H_
#define ATTND_ENGINE_KDE_INDEX_LEAF_SUMMARY_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/segment.h"

namespace attnd::engine {

// A leaf with its means: component c of the mean key is mean_key[c * mean_stride]. Borrowed.
struct LeafMeans {
  BlockView<float> block;
  const float* mean_key = nullptr;
  std::int64_t mean_stride = 1;
  const float* mean_value = nullptr;  // [padded d_v]
  const float* roots = nullptr;       // [64]: square roots of the weights of its keys
};

// As in LeafStats.
struct LeafNumbers {
  float log_count = 0.0F;
  float noise = 0.0F;  // the sum of squared weights
  float variance = 0.0F;
  float radius = 0.0F;
};

// Where a summary is written.
struct LeafSummary {
  float* mean_key = nullptr;
  std::int64_t mean_stride = 1;
  float* mean_value = nullptr;  // [padded d_v]
  float* roots = nullptr;       // [64]
};

// Of the block's valid keys, of which there is at least one. `centre`: q0 [d_k]; null: zero.
LeafNumbers SummarizeLeaf(const BlockLayout& layout, const BlockView<float>& block,
                          const float* centre, const LeafSummary& to);

// keys [64][width] and values [64][padded d_v] minus the leaf's means, times the square roots of
// their weights; padding, and rows that are not valid, are zeros.
void CentreLeaf(const BlockLayout& layout, const LeafMeans& leaf, std::int64_t width, float* keys,
                float* values);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_LEAF_SUMMARY_H_
