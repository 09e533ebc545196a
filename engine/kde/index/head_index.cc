#include "engine/kde/index/head_index.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace attnd::engine {
namespace {

constexpr std::int64_t kStats = 6;
constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
constexpr auto kToken = static_cast<std::int64_t>(sizeof(std::int32_t));

std::int64_t LeavesOf(std::int64_t keys) { return (keys + kBlockTokens - 1) / kBlockTokens; }

std::int64_t SummaryBytes(const BlockLayout& layout, std::int64_t tokens, std::int64_t leaves) {
  return static_cast<std::int64_t>(sizeof(HeadIndex)) +
         kFloat * RoundUp(leaves, kBlockTokens) *
             (layout.key_dim + layout.padded_value_dim + kStats) +
         leaves * static_cast<std::int64_t>(sizeof(BlockView<float>)) +
         kToken * (leaves * kBlockTokens + tokens);
}

}  // namespace

HeadIndex::HeadIndex(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys)
    : layout_(layout),
      tokens_(tokens),
      leaves_(LeavesOf(keys)),
      keys_(keys),
      blocks_(AlignedBuffer<float>::Uninitialized(leaves_ * layout.elements())),
      views_(static_cast<std::size_t>(leaves_)),
      leaf_tokens_(AlignedBuffer<std::int32_t>::Uninitialized(leaves_ * kBlockTokens)),
      places_(AlignedBuffer<std::int32_t>::Uninitialized(tokens)),
      means_t_(columns() * layout.key_dim),
      mean_values_(columns() * layout.padded_value_dim),
      stats_(kStats * columns()) {
  std::fill_n(places_.data(), tokens, -1);
  std::fill_n(stat(0), columns(), -std::numeric_limits<float>::infinity());
}

std::int64_t HeadIndex::Bytes(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys,
                              bool own_metric) {
  return SummaryBytes(layout, tokens, LeavesOf(keys)) +
         kFloat * LeavesOf(keys) * layout.elements() +
         (own_metric && LeafMetric::Enough(layout, keys) ? LeafMetric::Bytes(layout) : 0);
}

std::int64_t HeadIndex::bytes() const {
  return SummaryBytes(layout_, tokens_, leaves_) + blocks_.bytes() +
         (own_metric_ ? LeafMetric::Bytes(layout_) : 0);
}

LeafStats HeadIndex::stats() const {
  const float* stats = stats_.data();
  const std::int64_t n = columns();
  return {n, stats, stats + n, stats + 2 * n, stats + 3 * n, stats + 4 * n, stats + 5 * n};
}

LeafMeans HeadIndex::means(std::int64_t leaf) const {
  return {views_.data()[leaf], means_t(leaf / kBlockTokens) + leaf % kBlockTokens, kBlockTokens,
          mean_values(0) + leaf * layout_.padded_value_dim, centre()};
}

void HeadIndex::SetLeaf(std::int64_t leaf, const BlockView<float>& block,
                        const std::int32_t* tokens) {
  views_.data()[leaf] = block;
  std::copy_n(tokens, kBlockTokens, leaf_tokens_.data() + leaf * kBlockTokens);
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    if (((block.valid >> j) & 1U) == 0) continue;
    places_.data()[tokens[j]] = static_cast<std::int32_t>(leaf * kBlockTokens + j);
  }
}

void HeadIndex::Summarize(std::int64_t leaf) {
  float* mean_key =
      means_t_.data() + leaf / kBlockTokens * layout_.key_elements() + leaf % kBlockTokens;
  const LeafNumbers numbers =
      SummarizeLeaf(layout_, views_.data()[leaf], centre(), mean_key, kBlockTokens,
                    mean_values_.data() + leaf * layout_.padded_value_dim);
  stat(0)[leaf] = numbers.log_count;
  stat(1)[leaf] = numbers.noise;
  stat(2)[leaf] = numbers.variance;
  stat(3)[leaf] = numbers.radius;
  stat(4)[leaf] = 1.0F;
}

}  // namespace attnd::engine
