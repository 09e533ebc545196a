#include "engine/kde/head_index.h"

#include <algorithm>

#include "engine/gemm.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kStats = 6;
constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
constexpr auto kToken = static_cast<std::int64_t>(sizeof(std::int32_t));

// A span tells the shape of its leaves if it has this many keys for each component, which also
// keeps P and G below an eighth of its keys and values.
constexpr std::int64_t kKeysPerComponent = 8;

}  // namespace

std::int64_t HeadIndex::padded_key_dim() const {
  return RoundUp(layout_.key_dim, kGemmColumnMultiple);
}

std::int64_t HeadIndex::MetricElements(const BlockLayout& layout, std::int64_t keys) {
  if (keys < kKeysPerComponent * layout.key_dim) return 0;
  return layout.key_dim * (RoundUp(layout.key_dim, kGemmColumnMultiple) + layout.padded_value_dim);
}

HeadIndex::HeadIndex(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys)
    : layout_(layout),
      tokens_(tokens),
      keys_(keys),
      blocks_(AlignedBuffer<float>::Uninitialized(leaves() * layout.elements())),
      leaf_tokens_(AlignedBuffer<std::int32_t>::Uninitialized(leaves() * kBlockTokens)),
      places_(AlignedBuffer<std::int32_t>::Uninitialized(tokens)),
      means_t_(columns() * layout.key_dim),
      mean_values_(columns() * layout.padded_value_dim),
      stats_(kStats * columns()),
      metric_(MetricElements(layout, keys)) {}

std::int64_t HeadIndex::Bytes(const BlockLayout& layout, std::int64_t tokens, std::int64_t keys) {
  const std::int64_t leaves = (keys + kBlockTokens - 1) / kBlockTokens;
  const std::int64_t columns = RoundUp(leaves, kBlockTokens);
  return static_cast<std::int64_t>(sizeof(HeadIndex)) +
         kFloat * (leaves * layout.elements() +
                   columns * (layout.key_dim + layout.padded_value_dim + kStats) +
                   MetricElements(layout, keys)) +
         kToken * (leaves * kBlockTokens + tokens);
}

std::int64_t HeadIndex::bytes() const { return Bytes(layout_, tokens_, keys_); }

std::int64_t HeadIndex::LeafKeys(std::int64_t leaf) const {
  return std::min(kBlockTokens, keys_ - leaf * kBlockTokens);
}

BlockView<float> HeadIndex::leaf(std::int64_t leaf) const {
  const float* block = blocks_.data() + leaf * layout_.elements();
  return {block, block + layout_.key_elements(), FirstRows(LeafKeys(leaf))};
}

LeafStats HeadIndex::stats() const {
  const float* stats = stats_.data();
  const std::int64_t n = columns();
  return {n, stats, stats + n, stats + 2 * n, stats + 3 * n, stats + 4 * n, stats + 5 * n};
}

}  // namespace attnd::engine
