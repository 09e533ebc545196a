// What an index knows of one span of tokens and one kv-head: the keys and values themselves, in
// leaves of 64 keys that are near each other, and what can be said of a leaf without reading it.
//
// A leaf is a block as engine/exact/attend_block.h reads it. Its summary: mean key and mean value,
// and the numbers of LeafStats. What leaves share, the shape of their key clouds P and how values
// follow keys within them G, is kept once (`metric`), where the span has enough keys to tell:
//   u = q^T P q, P the pooled covariance of keys within leaves over its mean variance;
//   E[v | leaf, q] = mean value + slope * q^T G.
// Without it u = |q|^2 and slopes are 0.
//
// Owns its memory. Written by one thread while it is built, immutable and readable from any thread
// after. Cannot fail but for std::bad_alloc in the constructor.
#ifndef ATTND_ENGINE_KDE_HEAD_INDEX_H_
#define ATTND_ENGINE_KDE_HEAD_INDEX_H_

#include <array>
#include <cstdint>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/segment.h"
#include "engine/simd/leaf_selection.h"

namespace attnd::engine {

// The thresholds that an accuracy may lead to, in parts of a row's reference mass: 2^-4 to 2^-12.
inline constexpr std::int64_t kThresholds = 9;
constexpr float Threshold(std::int64_t i) {
  return 1.0F / static_cast<float>(std::int64_t{16} << i);
}

// Where no accuracy is asked for: 1/256.
inline constexpr std::int64_t kDefaultThreshold = 4;

// What the span's own keys, asked as queries, said of each threshold.
struct ErrorTable {
  float spread = 0.0F;                           // root mean square of |v - mean v|
  std::array<float, kThresholds> key_shares{};   // of keys that were read
  std::array<float, kThresholds> mass_ratios{};  // true over predicted, of what was not read
  std::array<float, kThresholds> errors{};       // 95 % quantile, in spreads
  std::array<float, kThresholds> factors{};      // 95 % quantile of error over predicted error
};

class HeadIndex {
 public:
  // For `keys` keys of a span of `tokens` tokens; all masked: 0 keys.
  HeadIndex(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys);

  static std::int64_t Bytes(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys);
  std::int64_t bytes() const;

  const BlockLayout& layout() const { return layout_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t keys() const { return keys_; }
  std::int64_t leaves() const { return (keys_ + kBlockTokens - 1) / kBlockTokens; }
  // Leaves with padding, a multiple of 64.
  std::int64_t columns() const { return RoundUp(leaves(), kBlockTokens); }
  std::int64_t LeafKeys(std::int64_t leaf) const;

  BlockView<float> leaf(std::int64_t leaf) const;
  // Tokens of a leaf's keys, counted from the span's first.
  const std::int32_t* tokens_of(std::int64_t leaf) const {
    return leaf_tokens_.data() + leaf * kBlockTokens;
  }
  // Which row of the leaves, 64 per leaf, a token has; -1: masked.
  std::int32_t place(std::int64_t token) const { return places_.data()[token]; }

  LeafStats stats() const;
  // Mean keys [d_k][64] of leaves 64 block to 64 block + 63; mean values [64][padded d_v].
  const float* means_t(std::int64_t block) const {
    return means_t_.data() + block * layout_.key_elements();
  }
  const float* mean_values(std::int64_t block) const {
    return mean_values_.data() + block * kBlockTokens * layout_.padded_value_dim;
  }

  bool has_metric() const { return metric_.size() > 0; }
  std::int64_t padded_key_dim() const;
  const float* covariance() const { return metric_.data(); }  // P [d_k][padded d_k]
  const float* cross_covariance() const {                     // G [d_k][padded d_v]
    return metric_.data() + layout_.key_dim * padded_key_dim();
  }
  const ErrorTable& errors() const { return errors_; }

 private:
  friend class HeadBuild;

  float* stat(std::int64_t which) { return stats_.data() + which * columns(); }
  static std::int64_t MetricElements(const BlockLayout& layout, std::int64_t keys);

  const BlockLayout layout_;
  const std::int64_t tokens_;
  const std::int64_t keys_;
  AlignedBuffer<float> blocks_;              // [leaves] blocks of the layout
  AlignedBuffer<std::int32_t> leaf_tokens_;  // [leaves][64]
  AlignedBuffer<std::int32_t> places_;       // [tokens]
  AlignedBuffer<float> means_t_;             // [columns / 64][d_k][64]
  AlignedBuffer<float> mean_values_;         // [columns][padded d_v]
  AlignedBuffer<float> stats_;               // [6][columns], in the order of LeafStats
  AlignedBuffer<float> metric_;              // P, then G; empty: none
  ErrorTable errors_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_HEAD_INDEX_H_
