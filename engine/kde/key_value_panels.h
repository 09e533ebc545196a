// Panels of 64 keys (key_panels.h) with their values, and softmax sums of query tiles over them.
// Immutable once packed; any thread.
#ifndef ATTND_ENGINE_KDE_KEY_VALUE_PANELS_H_
#define ATTND_ENGINE_KDE_KEY_VALUE_PANELS_H_

#include <cstdint>
#include <span>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/exact/softmax_sums.h"
#include "engine/kde/key_panels.h"
#include "engine/kde/rows.h"

namespace attnd::engine {

class KeyValuePanels {
 public:
  KeyValuePanels() = default;
  // The chosen rows of both, in this order; biases [chosen.size()] are added to scores (null:
  // zeros).
  KeyValuePanels(Rows keys, Rows values, std::span<const std::int64_t> chosen,
                 const double* biases);

  const KeyPanels& keys() const { return keys_; }
  std::int64_t padded_value_dim() const { return padded_value_dim_; }

  // Adds those keys of a panel that `visible` has a bit for to the sums of `rows` query rows,
  // packed by PackQueries. `scores` [sums.rows, 64] and `corrections` [sums.rows] are working
  // memory.
  struct Tile {
    std::int64_t rows = 0;
    const float* queries = nullptr;
    float* scores = nullptr;
    float* corrections = nullptr;
  };
  void Add(std::int64_t panel, RowMask visible, const Tile& tile, SoftmaxSums& sums) const;

 private:
  KeyPanels keys_;
  std::int64_t padded_value_dim_ = 0;
  AlignedBuffer<float> values_;  // [panels * 64, padded d_v]
};

// sums / e^log_divisor to `output` [value_dim]; false, and zeros, where that leaves f32.
bool DivideSums(const SoftmaxSums& sums, std::int64_t row, double log_divisor,
                std::int64_t value_dim, float* output);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_KEY_VALUE_PANELS_H_
