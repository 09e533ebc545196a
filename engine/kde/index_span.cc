#include "engine/kde/index_span.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "engine/simd/transpose.h"

namespace attnd::engine {

RawBlock::RawBlock(const BlockLayout& layout, std::int64_t first_token, const Block& block)
    : first(first_token),
      valid(block.valid),
      data(AlignedBuffer<float>::Uninitialized(layout.kv_heads * layout.elements())),
      mean_rows(layout.kv_heads * (layout.key_dim + layout.padded_value_dim)) {
  const std::int64_t key_row = layout.kv_heads * layout.key_dim;
  const std::int64_t value_row = layout.kv_heads * layout.value_dim;
  for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
    float* stored = data.data() + head * layout.elements();
    TransposeKeys(block.keys + head * layout.key_dim, key_row, kBlockTokens, layout.key_dim,
                  stored);
    stored += layout.key_elements();
    for (std::int64_t token = 0; token < kBlockTokens; ++token) {
      std::copy_n(block.values + token * value_row + head * layout.value_dim, layout.value_dim,
                  stored);
      std::fill(stored + layout.value_dim, stored + layout.padded_value_dim, 0.0F);
      stored += layout.padded_value_dim;
    }
    float* mean_key = mean_rows.data() + head * (layout.key_dim + layout.padded_value_dim);
    numbers_of_heads.push_back(
        SummarizeLeaf(layout, view(layout, head), mean_key, 1, mean_key + layout.key_dim));
  }
}

LeafMeans RawBlock::means(const BlockLayout& layout, std::int64_t head) const {
  const float* mean_key = mean_rows.data() + head * (layout.key_dim + layout.padded_value_dim);
  return {view(layout, head), mean_key, 1, mean_key + layout.key_dim};
}

std::int64_t RawBlock::Bytes(const BlockLayout& layout) {
  return static_cast<std::int64_t>(sizeof(RawBlock)) +
         layout.kv_heads * ((layout.elements() + layout.key_dim + layout.padded_value_dim) *
                                static_cast<std::int64_t>(sizeof(float)) +
                            static_cast<std::int64_t>(sizeof(LeafNumbers)));
}

std::int64_t IndexSpan::bytes() const {
  std::int64_t bytes = static_cast<std::int64_t>(sizeof(IndexSpan));
  for (const auto& head : heads) bytes += head->bytes();
  return bytes;
}

std::int64_t IndexSpan::Bytes(const BlockLayout& layout, const TokenSpan& span) {
  return static_cast<std::int64_t>(sizeof(IndexSpan)) +
         layout.kv_heads * HeadIndex::Bytes(layout, span.tokens, span.tokens, IsMainSpan(span));
}

std::shared_ptr<const IndexSpan> IndexRawBlocks(
    const BlockLayout& layout, std::span<const std::shared_ptr<const RawBlock>> blocks,
    const IndexSpan& main, const IndexSpan* before, Scratch& scratch) {
  auto fresh = std::make_shared<IndexSpan>();
  const auto count = static_cast<std::int64_t>(blocks.size());
  fresh->span = {blocks.front()->first, count * kBlockTokens};
  for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
    const HeadIndex& of_main = *main.heads[static_cast<std::size_t>(head)];
    const HeadIndex* of_before =
        before == nullptr ? nullptr : before->heads[static_cast<std::size_t>(head)].get();
    auto index = std::make_unique<HeadIndex>(layout, count);
    index->ShareMetric(of_main.metric(), /*own=*/false);
    index->SetFreshErrors(of_main.fresh_errors());
    for (std::int64_t leaf = 0; leaf < count; ++leaf) {
      const RawBlock& block = *blocks[static_cast<std::size_t>(leaf)];
      const LeafMeans means = block.means(layout, head);
      std::array<std::int32_t, kBlockTokens> tokens;
      std::iota(tokens.begin(), tokens.end(), static_cast<std::int32_t>(leaf * kBlockTokens));
      index->SetLeaf(leaf, means.block, tokens.data());
      index->CopySummary(leaf, means, block.numbers(head));
      if (index->metric() == nullptr) continue;
      const std::int64_t old =
          before == nullptr ? -1 : (block.first - before->span.first) / kBlockTokens;
      const bool known = of_before != nullptr && of_before->metric() == index->metric() &&
                         block.first >= before->span.first && old < of_before->leaves();
      index->SetSlope(
          leaf, known ? of_before->stats().slopes[old] : index->metric()->Slope(means, scratch));
    }
    fresh->heads.push_back(std::move(index));
  }
  return fresh;
}

std::int64_t SpanInput::CountKeys() const {
  std::int64_t keys = 0;
  for (const auto& piece : spans) keys += piece->heads.front()->keys();
  for (const auto& block : blocks) keys += std::popcount(block->valid);
  return keys;
}

}  // namespace attnd::engine
