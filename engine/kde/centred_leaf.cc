#include "engine/kde/centred_leaf.h"

#include <algorithm>

namespace attnd::engine {

void CentreLeaf(const HeadIndex& index, std::int64_t leaf, float* keys, float* values) {
  const BlockLayout& layout = index.layout();
  const std::int64_t width = index.padded_key_dim();
  const std::int64_t count = index.LeafKeys(leaf);
  const BlockView<float> block = index.leaf(leaf);
  const float* mean_t = index.means_t(leaf / kBlockTokens) + leaf % kBlockTokens;
  std::fill_n(keys, kBlockTokens * width, 0.0F);
  for (std::int64_t c = 0; c < layout.key_dim; ++c) {
    const float mean = mean_t[c * kBlockTokens];
    for (std::int64_t j = 0; j < count; ++j) {
      keys[j * width + c] = block.keys_t[c * kBlockTokens + j] - mean;
    }
  }
  const std::int64_t columns = layout.padded_value_dim;
  const float* mean = index.mean_values(0) + leaf * columns;
  std::fill_n(values, kBlockTokens * columns, 0.0F);
  for (std::int64_t j = 0; j < count; ++j) {
    for (std::int64_t c = 0; c < layout.value_dim; ++c) {
      values[j * columns + c] = block.values[j * columns + c] - mean[c];
    }
  }
}

}  // namespace attnd::engine
