#include "engine/kde/index/head_index.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "engine/kde/index/branch_summary.h"

namespace attnd::engine {
namespace {

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
constexpr auto kToken = static_cast<std::int64_t>(sizeof(std::int32_t));

std::int64_t LeavesOf(std::int64_t keys) { return (keys + kBlockTokens - 1) / kBlockTokens; }

std::int64_t SummaryBytes(const BlockLayout& layout, std::int64_t tokens, std::int64_t leaves) {
  return static_cast<std::int64_t>(sizeof(HeadIndex)) + SummaryTable::Bytes(layout, leaves) +
         SummaryTable::Bytes(layout, BranchesOf(leaves)) +
         leaves * static_cast<std::int64_t>(sizeof(BlockView<float>)) +
         kToken * (leaves * kBlockTokens + tokens);
}

}  // namespace

HeadIndex::HeadIndex(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys)
    : layout_(layout),
      tokens_(tokens),
      keys_(keys),
      summaries_(layout, LeavesOf(keys)),
      branches_(layout, BranchesOf(LeavesOf(keys))),
      blocks_(AlignedBuffer<float>::Uninitialized(leaves() * layout.elements())),
      views_(static_cast<std::size_t>(leaves())),
      leaf_tokens_(AlignedBuffer<std::int32_t>::Uninitialized(leaves() * kBlockTokens)),
      places_(AlignedBuffer<std::int32_t>::Uninitialized(tokens)) {
  std::fill_n(places_.data(), tokens, -1);
}

std::int64_t HeadIndex::Bytes(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys,
                              bool own_metric) {
  return SummaryBytes(layout, tokens, LeavesOf(keys)) +
         kFloat * LeavesOf(keys) * layout.elements() +
         (own_metric && LeafMetric::Enough(layout, keys) ? LeafMetric::Bytes(layout) : 0);
}

std::int64_t HeadIndex::bytes() const {
  return SummaryBytes(layout_, tokens_, leaves()) + blocks_.bytes() +
         (own_metric_ ? LeafMetric::Bytes(layout_) : 0);
}

LeafMeans HeadIndex::means(std::int64_t leaf, const float* roots) const {
  return {views_.data()[leaf], summaries_.mean_key(leaf), kBlockTokens, summaries_.mean_value(leaf),
          roots};
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

void HeadIndex::Summarize(std::int64_t leaf, bool isolated, float* roots) {
  LeafNumbers numbers =
      SummarizeLeaf(layout_, views_.data()[leaf], centre(),
                    {summaries_.mean_key(leaf), kBlockTokens, summaries_.mean_value(leaf), roots});
  if (isolated) numbers.variance = std::numeric_limits<float>::infinity();
  summaries_.Set(leaf, numbers);
}

}  // namespace attnd::engine
