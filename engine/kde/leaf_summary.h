// What can be said of 64 keys without reading them again: their means, and the numbers of
// LeafStats. Sums in f64. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_KDE_LEAF_SUMMARY_H_
#define ATTND_ENGINE_KDE_LEAF_SUMMARY_H_

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
};

// As in LeafStats; a leaf without keys has -inf and zeros.
struct LeafNumbers {
  float log_count;
  float noise;
  float variance;
  float radius;
};

// Of the block's valid keys. Writes the mean key at a stride and the mean value [padded d_v].
LeafNumbers SummarizeLeaf(const BlockLayout& layout, const BlockView<float>& block, float* mean_key,
                          std::int64_t mean_stride, float* mean_value);

// keys [64][width] and values [64][padded d_v] minus the leaf's means; padding, and rows that are
// not valid, are zeros.
void CentreLeaf(const BlockLayout& layout, const LeafMeans& leaf, std::int64_t width, float* keys,
                float* values);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_LEAF_SUMMARY_H_
