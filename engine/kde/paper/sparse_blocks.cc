#include "engine/kde/paper/sparse_blocks.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "engine/kde/paper/key_panels.h"

namespace attnd::engine {

SparseBlocks::SparseBlocks(std::span<const std::uint32_t> ranks, std::int64_t block_keys)
    : order_(ranks.size()) {
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](std::int64_t a, std::int64_t b) {
    return ranks[static_cast<std::size_t>(a)] < ranks[static_cast<std::size_t>(b)];
  });
  for (const std::int64_t key : order_)
    sorted_ranks_.push_back(ranks[static_cast<std::size_t>(key)]);
  const auto keys = static_cast<std::int64_t>(ranks.size());
  panels_ = (keys + kPanelKeys - 1) / kPanelKeys;
  const std::int64_t block_panels = std::min((block_keys - 1) / kPanelKeys + 1, panels_);
  blocks_ = (panels_ + block_panels - 1) / block_panels;
}

std::int64_t SparseBlocks::first_panel(std::int64_t block) const {
  return block * panels_ / blocks_;
}

std::int64_t SparseBlocks::first_place(std::int64_t block) const {
  return std::min(first_panel(block) * kPanelKeys, static_cast<std::int64_t>(order_.size()));
}

std::int64_t SparseBlocks::BlockOfPlace(std::int64_t place) const {
  const std::int64_t panel = place / kPanelKeys;
  std::int64_t block = panel * blocks_ / panels_;
  while (first_panel(block + 1) <= panel) ++block;
  return block;
}

std::int64_t SparseBlocks::BlockOfRank(std::uint32_t rank) const {
  const auto [first, last] = std::equal_range(sorted_ranks_.begin(), sorted_ranks_.end(), rank);
  const std::int64_t middle =
      ((first - sorted_ranks_.begin()) + (last - sorted_ranks_.begin())) / 2;
  return BlockOfPlace(std::min(middle, static_cast<std::int64_t>(order_.size()) - 1));
}

}  // namespace attnd::engine
