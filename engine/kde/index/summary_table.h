// The summaries of many sets of keys side by side, as products and vector loops read them: mean
// keys, mean values, and the numbers of LeafStats. Leaves have one table, branches (groups of
// neighbouring leaves) another.
//
// Owns its memory. Written by one thread while an index is made, immutable and readable from any
// thread after. Cannot fail but for std::bad_alloc in the constructor.
#ifndef ATTND_ENGINE_KDE_INDEX_SUMMARY_TABLE_H_
#define ATTND_ENGINE_KDE_INDEX_SUMMARY_TABLE_H_

#include <algorithm>
#include <cstdint>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/exact/segment.h"
#include "engine/gemm.h"
#include "engine/kde/index/leaf_summary.h"
#include "engine/simd/leaf_selection.h"

namespace attnd::engine {

class SummaryTable {
 public:
  SummaryTable(const BlockLayout& layout, std::int64_t count);

  static std::int64_t Bytes(const BlockLayout& layout, std::int64_t count);
  std::int64_t bytes() const { return Bytes(layout_, count_); }

  const BlockLayout& layout() const { return layout_; }
  std::int64_t count() const { return count_; }
  // With padding, a multiple of 64.
  std::int64_t columns() const { return RoundUp(count_, kBlockTokens); }
  // Columns of a block of 64 up to the last summary, a multiple of 16.
  std::int64_t BlockColumns(std::int64_t block) const {
    return std::min(RoundUp(count_ - block * kBlockTokens, kGemmColumnMultiple), kBlockTokens);
  }

  // Of columns [first, first + columns), both multiples of 16.
  LeafStats stats(std::int64_t first, std::int64_t columns) const;
  LeafStats stats() const { return stats(0, RoundUp(count_, kGemmColumnMultiple)); }

  // Mean keys [d_k][64] of columns 64 block to 64 block + 63; mean values [64][padded d_v].
  const float* means_t(std::int64_t block) const {
    return means_t_.data() + block * layout_.key_elements();
  }
  const float* mean_values(std::int64_t block) const { return mean_value(block * kBlockTokens); }
  // Component c is mean_key(i)[64 c].
  const float* mean_key(std::int64_t i) const {
    return means_t(i / kBlockTokens) + i % kBlockTokens;
  }
  const float* mean_value(std::int64_t i) const {
    return mean_values_.data() + i * layout_.padded_value_dim;
  }

  // For those who make an index.
  float* mean_key(std::int64_t i) {
    return means_t_.data() + i / kBlockTokens * layout_.key_elements() + i % kBlockTokens;
  }
  float* mean_value(std::int64_t i) { return mean_values_.data() + i * layout_.padded_value_dim; }
  // With a ratio of 1 and no slope.
  void Set(std::int64_t i, const LeafNumbers& numbers);
  void SetSlope(std::int64_t i, float slope) { stat(5)[i] = slope; }
  float* ratios() { return stat(4); }

 private:
  float* stat(std::int64_t which) { return stats_.data() + which * columns(); }

  const BlockLayout layout_;
  const std::int64_t count_;
  AlignedBuffer<float> means_t_;      // [columns / 64][d_k][64]
  AlignedBuffer<float> mean_values_;  // [columns][padded d_v]
  AlignedBuffer<float> stats_;        // [6][columns], in the order of LeafStats
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_SUMMARY_TABLE_H_
