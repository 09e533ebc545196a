#include "engine/kde/index/leaf_assignment.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "engine/block.h"
#include "engine/gemm.h"
#include "engine/kde/index/leaf_means.h"
#include "engine/kde/index/ranked_rows.h"
#include "engine/simd/nearest.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kLeastLeavesWithIsolated = 96;

}  // namespace

std::int64_t FirstIsolatedLeaf(std::int64_t keys) {
  const std::int64_t leaves = (keys + kBlockTokens - 1) / kBlockTokens;
  return leaves >= kLeastLeavesWithIsolated ? leaves - 1 : leaves;
}

void SetIsolatedKeysApart(const KeyMatrix& keys, std::span<std::int32_t> order) {
  const auto count = static_cast<std::int64_t>(order.size());
  const std::int64_t first = FirstIsolatedLeaf(count) * kBlockTokens;
  if (first >= count) return;
  std::vector<std::pair<float, std::int32_t>> distances;
  DistancesFromMeans(keys, order, distances);
  std::nth_element(distances.begin(), distances.begin() + first, distances.end());
  std::vector<bool> isolated(order.size());
  for (std::int64_t i = first; i < count; ++i) {
    isolated[static_cast<std::size_t>(distances[static_cast<std::size_t>(i)].second)] = true;
  }
  std::int64_t free = 0;  // an isolated key before `first` gives way
  for (std::int64_t i = first; i < count; ++i) {
    if (isolated[static_cast<std::size_t>(i)]) continue;
    while (!isolated[static_cast<std::size_t>(free)]) ++free;
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(free++)]);
  }
}

void ReassignLeaves(const KeyMatrix& keys, std::span<std::int32_t> order, Scratch& scratch) {
  const auto count = static_cast<std::int64_t>(order.size());
  const std::int64_t leaves = (count + kBlockTokens - 1) / kBlockTokens;
  if (leaves < 2) return;
  const Scratch::Frame frame(scratch);
  const std::int64_t columns = RoundUp(leaves, kGemmColumnMultiple);
  float* means_t = scratch.Take(keys.dim * columns);
  float* offsets = scratch.Take(columns);
  float* scores = scratch.Take(RoundUp(count, kGemmMaxRows) * columns);
  MeanColumns(keys, order, columns, means_t, offsets);
  ScoreKeys(keys, order, columns, means_t, scores, scratch);

  // Clearest choice first; equal ones in the order of the keys.
  std::vector<std::uint64_t> turns(order.size());
  std::vector<std::int32_t> nearest(order.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const Nearest found = NearestOf(scores + i * columns, offsets, leaves);
    turns[static_cast<std::size_t>(i)] = RankedRow(-found.margin, static_cast<std::int32_t>(i));
    nearest[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(found.index);
  }
  SortRows(turns);

  std::vector<std::int32_t> assigned(order.size());
  std::vector<std::int64_t> held(static_cast<std::size_t>(leaves));
  const auto room = [&](std::int64_t leaf) {
    return std::min(kBlockTokens, count - leaf * kBlockTokens) -
           held[static_cast<std::size_t>(leaf)];
  };
  for (const std::uint64_t turn : turns) {
    const std::int32_t i = RowOf(turn);
    std::int64_t leaf = nearest[static_cast<std::size_t>(i)];
    if (room(leaf) == 0) leaf = IndexOfLargest(scores + i * columns, offsets, leaves);
    std::int64_t& filled = held[static_cast<std::size_t>(leaf)];
    assigned[static_cast<std::size_t>(leaf * kBlockTokens + filled)] =
        order[static_cast<std::size_t>(i)];
    ++filled;
    if (room(leaf) == 0) offsets[leaf] = -std::numeric_limits<float>::infinity();
  }
  for (std::int64_t first = 0; first < count; first += kBlockTokens) {
    std::sort(assigned.begin() + first, assigned.begin() + std::min(first + kBlockTokens, count));
  }
  std::copy(assigned.begin(), assigned.end(), order.begin());
}

}  // namespace attnd::engine
