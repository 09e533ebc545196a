#include "engine/exact/open_block.h"

#include <algorithm>

#include "engine/exact/segment.h"
#include "engine/simd/transpose.h"

namespace attnd::engine {

BlockView<float> OpenBlock(const TailView& tail, const LayerShape& shape, std::int64_t kv_head,
                           Scratch& scratch) {
  const BlockLayout layout(shape);
  float* keys_t = scratch.Take(layout.elements());
  float* values = keys_t + layout.key_elements();
  std::fill_n(keys_t, layout.elements(), 0.0F);
  TransposeKeys(tail.tail->keys.data() + kv_head * shape.key_dim, shape.key_row(), tail.rows,
                shape.key_dim, keys_t);
  for (std::int64_t row = 0; row < tail.rows; ++row) {
    std::copy_n(tail.tail->values.data() + row * shape.value_row() + kv_head * shape.value_dim,
                shape.value_dim, values + row * layout.padded_value_dim);
  }
  return {keys_t, values, tail.valid & FirstRows(tail.rows)};
}

}  // namespace attnd::engine
