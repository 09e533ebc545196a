// What an index knows of one span of tokens and one kv-head: the keys and values themselves, in
// leaves of up to 64 keys, and what can be said without reading them: a summary of each leaf, and
// one of each branch, 16 neighbouring leaves.
//
// A leaf is a block as engine/exact/attend_block.h reads it. What leaves have in common is in a
// LeafMetric that several indices share:
//   u = q^T P q; E[v | leaf, q] = mean value + slope * q^T G.
// Without one u = |q|^2 and slopes are 0.
//
// Written by one thread while it is made, immutable and readable from any thread after. Cannot fail
// but for std::bad_alloc in the constructor.
#ifndef ATTND_ENGINE_KDE_INDEX_HEAD_INDEX_H_
#define ATTND_ENGINE_KDE_INDEX_HEAD_INDEX_H_

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/segment.h"
#include "engine/kde/index/leaf_metric.h"
#include "engine/kde/index/leaf_summary.h"
#include "engine/kde/index/summary_table.h"

namespace attnd::engine {

// The thresholds that an accuracy may lead to, in parts of a row's reference mass: 2^-4, 2^-4.25,
// ... 2^-14. In steps of a quarter a target wastes up to 14 % of the keys that it could spare; in
// steps of a half it was 40 %.
inline constexpr std::int64_t kThresholdsPerHalving = 4;
inline constexpr std::int64_t kThresholds = 10 * kThresholdsPerHalving + 1;
constexpr float Threshold(std::int64_t i) {
  constexpr float kFractions[kThresholdsPerHalving] = {1.0F, 0.84089642F, 0.70710678F, 0.59460356F};
  return kFractions[i % kThresholdsPerHalving] /
         static_cast<float>(std::int64_t{16} << (i / kThresholdsPerHalving));
}

// Where no accuracy is asked for: 1/256.
inline constexpr std::int64_t kDefaultThreshold = 4 * kThresholdsPerHalving;

// What keys, asked as queries, said of each threshold.
struct ErrorTable {
  ErrorTable() { mass_ratios.fill(1.0F); }

  std::int64_t keys = 0;  // that were asked; thresholds are parts of their mass
  float spread = 0.0F;    // root mean square of |v - mean v|
  std::array<float, kThresholds> key_shares{};  // of keys that were read
  std::array<float, kThresholds> mass_ratios;  // true over predicted, of what was not read: medians
  std::array<float, kThresholds> errors{};     // 95 % quantile, in spreads
  std::array<float, kThresholds> factors{};    // 95 % quantile of error over predicted error
};

class HeadIndex {
 public:
  // For `keys` keys of a span of `tokens` tokens; all masked: 0 keys.
  HeadIndex(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys);

  // With a metric of its own or a borrowed one.
  static std::int64_t Bytes(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys,
                            bool own_metric);
  std::int64_t bytes() const;

  const BlockLayout& layout() const { return layout_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t keys() const { return keys_; }
  std::int64_t leaves() const { return summaries_.count(); }
  // Leaves with padding, a multiple of 64.
  std::int64_t columns() const { return summaries_.columns(); }

  const BlockView<float>& leaf(std::int64_t leaf) const { return views_.data()[leaf]; }
  std::int64_t LeafKeys(std::int64_t leaf) const {
    return std::popcount(views_.data()[leaf].valid);
  }
  // Tokens of a leaf's keys, counted from the span's first.
  const std::int32_t* tokens_of(std::int64_t leaf) const {
    return leaf_tokens_.data() + leaf * kBlockTokens;
  }
  // Which row of the leaves, 64 per leaf, a token has; -1: masked.
  std::int32_t place(std::int64_t token) const { return places_.data()[token]; }

  const SummaryTable& summaries() const { return summaries_; }
  const SummaryTable& branches() const { return branches_; }
  // With the roots that Summarize() wrote.
  LeafMeans means(std::int64_t leaf, const float* roots) const;

  const std::shared_ptr<const LeafMetric>& metric() const { return metric_; }
  // [d_k], about which summaries are made; null: zero.
  const float* centre() const { return metric_ == nullptr ? nullptr : metric_->centre(); }
  const ErrorTable& errors() const { return errors_; }

  // For those who make an index. The leaf's view, tokens and places are written before.
  void SetLeaf(std::int64_t leaf, const BlockView<float>& block, const std::int32_t* tokens);
  float* blocks() { return blocks_.data(); }
  // An isolated leaf, whose keys have nothing in common, has an infinite variance: only its radius
  // tells of it, and it is read unless that says that it weighs nothing. Writes the square roots
  // of the keys' weights [64].
  void Summarize(std::int64_t leaf, bool isolated, float* roots);
  SummaryTable& summaries() { return summaries_; }
  SummaryTable& branches() { return branches_; }
  void ShareMetric(std::shared_ptr<const LeafMetric> metric, bool own) {
    metric_ = std::move(metric);
    own_metric_ = own;
  }
  void SetErrors(const ErrorTable& errors) { errors_ = errors; }

 private:
  const BlockLayout layout_;
  const std::int64_t tokens_;
  const std::int64_t keys_;
  SummaryTable summaries_;  // of leaves
  SummaryTable branches_;
  AlignedBuffer<float> blocks_;              // [leaves] blocks of the layout
  std::vector<BlockView<float>> views_;      // [leaves]
  AlignedBuffer<std::int32_t> leaf_tokens_;  // [leaves][64]
  AlignedBuffer<std::int32_t> places_;       // [tokens]
  std::shared_ptr<const LeafMetric> metric_;
  bool own_metric_ = false;
  ErrorTable errors_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_HEAD_INDEX_H_
