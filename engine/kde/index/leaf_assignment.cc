#include "engine/kde/index/leaf_assignment.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "engine/block.h"
#include "engine/gemm.h"
#include "engine/simd/nearest.h"
#include "engine/simd/row_lists.h"

namespace attnd::engine {
namespace {

// How many rows before it is read a row is asked for.
constexpr std::int64_t kAhead = 4;

constexpr std::int64_t kLeastLeavesWithIsolated = 96;

std::int64_t RoundUpTo(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Leaf means as columns [dim][columns], and minus half their squared lengths.
void LeafMeans(const KeyMatrix& keys, std::span<const std::int32_t> order, std::int64_t columns,
               float* means_t, float* offsets) {
  const auto count = static_cast<std::int64_t>(order.size());
  std::vector<double> sum(static_cast<std::size_t>(keys.dim));
  std::fill_n(means_t, keys.dim * columns, 0.0F);
  std::fill_n(offsets, columns, -std::numeric_limits<float>::infinity());
  for (std::int64_t leaf = 0; leaf * kBlockTokens < count; ++leaf) {
    const std::int64_t first = leaf * kBlockTokens;
    const std::int64_t end = std::min(first + kBlockTokens, count);
    SumRows({keys.rows, keys.dim, order.data() + first, end - first}, sum.data());
    double square = 0.0;
    for (std::int64_t c = 0; c < keys.dim; ++c) {
      const double mean = sum[static_cast<std::size_t>(c)] / static_cast<double>(end - first);
      square += mean * mean;
      means_t[c * columns + leaf] = static_cast<float>(mean);
    }
    offsets[leaf] = static_cast<float>(-0.5 * square);
  }
}

// scores[i][leaf] = key i . mean - |mean|^2 / 2: the nearest mean has the largest.
void ScoreKeys(const KeyMatrix& keys, std::span<const std::int32_t> order, std::int64_t columns,
               const float* means_t, float* scores, Scratch& scratch) {
  const auto count = static_cast<std::int64_t>(order.size());
  const Scratch::Frame frame(scratch);
  float* rows = scratch.Take(kGemmMaxRows * keys.dim);
  for (std::int64_t first = 0; first < count; first += kGemmMaxRows) {
    const std::int64_t now = std::min(kGemmMaxRows, count - first);
    for (std::int64_t i = 0; i < now; ++i) {
      const std::int64_t ahead = std::min(first + i + kAhead, count - 1);
      PrefetchRow(keys.row(order[static_cast<std::size_t>(ahead)]), keys.dim);
      std::copy_n(keys.row(order[static_cast<std::size_t>(first + i)]), keys.dim,
                  rows + i * keys.dim);
    }
    const std::int64_t padded = GemmPaddedRows(now);
    std::fill(rows + now * keys.dim, rows + padded * keys.dim, 0.0F);
    GemmNN(padded, columns, keys.dim, rows, keys.dim, means_t, columns, /*accumulate=*/false,
           scores + first * columns, columns);
  }
}

// The keys' squared distances from the means of their leaves, in the order of `order`.
void DistancesFromMeans(const KeyMatrix& keys, std::span<const std::int32_t> order,
                        std::vector<std::pair<float, std::int32_t>>& distances) {
  const auto count = static_cast<std::int64_t>(order.size());
  std::vector<double> sum(static_cast<std::size_t>(keys.dim));
  std::vector<float> mean(sum.size());
  std::array<float, kBlockTokens> squares;
  distances.clear();
  for (std::int64_t first = 0; first < count; first += kBlockTokens) {
    const std::int64_t end = std::min(first + kBlockTokens, count);
    const RowList leaf = {keys.rows, keys.dim, order.data() + first, end - first};
    SumRows(leaf, sum.data());
    for (std::size_t c = 0; c < sum.size(); ++c) {
      mean[c] = static_cast<float>(sum[c] / static_cast<double>(leaf.count));
    }
    SquareOffsets(leaf, mean.data(), squares.data());
    for (std::int64_t i = first; i < end; ++i) {
      distances.emplace_back(squares[static_cast<std::size_t>(i - first)],
                             static_cast<std::int32_t>(i));
    }
  }
}

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
  const std::int64_t columns = RoundUpTo(leaves, kGemmColumnMultiple);
  float* means_t = scratch.Take(keys.dim * columns);
  float* offsets = scratch.Take(columns);
  float* scores = scratch.Take(RoundUpTo(count, kGemmMaxRows) * columns);
  LeafMeans(keys, order, columns, means_t, offsets);
  ScoreKeys(keys, order, columns, means_t, scores, scratch);

  // Clearest choice first; equal ones in the order of the keys.
  std::vector<std::pair<float, std::int32_t>> turns(order.size());
  std::vector<std::int32_t> nearest(order.size());
  for (std::int64_t i = 0; i < count; ++i) {
    const Nearest found = NearestOf(scores + i * columns, offsets, leaves);
    turns[static_cast<std::size_t>(i)] = {-found.margin, static_cast<std::int32_t>(i)};
    nearest[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(found.index);
  }
  std::sort(turns.begin(), turns.end());

  std::vector<std::int32_t> assigned(order.size());
  std::vector<std::int64_t> held(static_cast<std::size_t>(leaves));
  const auto room = [&](std::int64_t leaf) {
    return std::min(kBlockTokens, count - leaf * kBlockTokens) -
           held[static_cast<std::size_t>(leaf)];
  };
  for (const auto& [margin, i] : turns) {
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
