// Panels of 64 keys (key_panels.h) with their values, and softmax sums of query tiles over them.
// Once packed they are not changed: any thread.
#ifndef ATTND_ENGINE_KDE_PAPER_KEY_VALUE_PANELS_H_
#define ATTND_ENGINE_KDE_PAPER_KEY_VALUE_PANELS_H_

#include <cstdint>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/exact/softmax_sums.h"
#include "engine/kde/paper/key_panels.h"
#include "engine/kde/rows.h"

namespace attnd::engine {

class KeyValuePanels {
 public:
  KeyValuePanels() = default;
  // For `count` rows of these keys and values, none of which is packed yet.
  KeyValuePanels(std::int64_t count, Rows keys, Rows values);

  // Packs a panel of both, as KeyPanels does; `chosen` is required.
  void Pack(std::int64_t panel, Rows keys, Rows values, const std::int64_t* chosen,
            const double* biases);
  void PackAll(Rows keys, Rows values, const std::int64_t* chosen, const double* biases);

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

#endif  // ATTND_ENGINE_KDE_PAPER_KEY_VALUE_PANELS_H_
