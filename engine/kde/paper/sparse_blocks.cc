#include "engine/kde/paper/sparse_blocks.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "engine/kde/paper/angular_hash.h"
#include "engine/kde/paper/key_panels.h"

namespace attnd::engine {

SparseBlocks::SparseBlocks(std::span<const std::uint32_t> ranks, std::int64_t block_keys)
    : order_(ranks.size()), sorted_ranks_(ranks.size()) {
  // By counting: comparing took 10 ms for 131,072 keys, longer than a piece of work may last.
  std::vector<std::size_t> places(std::size_t{1} << AngularHash::kBits, 0);
  for (const std::uint32_t rank : ranks) ++places[rank];
  std::exclusive_scan(places.begin(), places.end(), places.begin(), std::size_t{0});
  for (std::size_t key = 0; key < ranks.size(); ++key) {
    const std::size_t place = places[ranks[key]]++;
    order_[place] = static_cast<std::int64_t>(key);
    sorted_ranks_[place] = ranks[key];
  }
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
