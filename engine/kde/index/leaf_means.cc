#include "engine/kde/index/leaf_means.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "engine/block.h"
#include "engine/gemm.h"
#include "engine/simd/nearest.h"
#include "engine/simd/row_lists.h"

namespace attnd::engine {
namespace {

// How many rows before it is read a row is asked for.
constexpr std::int64_t kAhead = 4;

}  // namespace

void MeanColumns(const KeyMatrix& keys, std::span<const std::int32_t> order, std::int64_t columns,
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

void DistancesFromMeans(const KeyMatrix& keys, std::span<const std::int32_t> order,
                        std::vector<std::pair<float, std::int32_t>>& distances) {
  const auto count = static_cast<std::int64_t>(order.size());
  std::vector<double> sum(static_cast<std::size_t>(keys.dim));
  std::vector<float> mean(sum.size());
  std::array<float, kBlockTokens> squares;
  distances.clear();
  distances.reserve(order.size());
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

}  // namespace attnd::engine
