#include "engine/kde/leaf_summary.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

namespace attnd::engine {
namespace {

bool IsValid(const BlockView<float>& block, std::int64_t row) {
  return ((block.valid >> row) & 1U) != 0;
}

}  // namespace

LeafNumbers SummarizeLeaf(const BlockLayout& layout, const BlockView<float>& block, float* mean_key,
                          std::int64_t mean_stride, float* mean_value) {
  std::fill_n(mean_value, layout.padded_value_dim, 0.0F);
  if (block.valid == 0) {
    for (std::int64_t c = 0; c < layout.key_dim; ++c) mean_key[c * mean_stride] = 0.0F;
    return {-std::numeric_limits<float>::infinity(), 0.0F, 0.0F, 0.0F};
  }
  const auto n = static_cast<double>(std::popcount(block.valid));
  std::array<double, kBlockTokens> factors{};  // 1 where a row is valid
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    factors[static_cast<std::size_t>(j)] = IsValid(block, j) ? 1.0 : 0.0;
  }
  std::array<double, kBlockTokens> distances{};
  for (std::int64_t c = 0; c < layout.key_dim; ++c) {
    const float* component = block.keys_t + c * kBlockTokens;
    // Rows that are not valid are zeros. Four sums, so that they need not wait for each other.
    std::array<double, 4> sums{};
    for (std::size_t j = 0; j < kBlockTokens; ++j) {
      sums[j % 4] += static_cast<double>(component[j]);
    }
    const auto mean = static_cast<float>(((sums[0] + sums[1]) + (sums[2] + sums[3])) / n);
    mean_key[c * mean_stride] = mean;
    for (std::size_t j = 0; j < kBlockTokens; ++j) {
      const double off = static_cast<double>(component[j]) - static_cast<double>(mean);
      distances[j] += off * off;
    }
  }
  double squares = 0.0;
  double radius = 0.0;
  for (std::size_t j = 0; j < kBlockTokens; ++j) {
    if (factors[j] == 0.0) continue;
    squares += distances[j];
    radius = std::max(radius, distances[j]);
  }
  // Rows that are not valid are zeros here too.
  std::array<double, 16> sums{};
  for (std::int64_t c = 0; c < layout.padded_value_dim; c += 16) {
    sums.fill(0.0);
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      const float* values = block.values + j * layout.padded_value_dim + c;
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(values[i]);
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      mean_value[c + static_cast<std::int64_t>(i)] = static_cast<float>(sums[i] / n);
    }
  }
  return {static_cast<float>(std::log(n)), static_cast<float>(1.0 / n),
          static_cast<float>(squares / n / static_cast<double>(layout.key_dim)),
          // Rounded up, so that the bound holds with what f32 makes of it.
          static_cast<float>(std::sqrt(radius) * (1.0 + 1e-6))};
}

void CentreLeaf(const BlockLayout& layout, const LeafMeans& leaf, std::int64_t width, float* keys,
                float* values) {
  std::fill_n(keys, kBlockTokens * width, 0.0F);
  // Transposed in pieces of 16 components that stay in the first-level cache.
  for (std::int64_t first = 0; first < layout.key_dim; first += 16) {
    const std::int64_t end = std::min(first + 16, layout.key_dim);
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      if (!IsValid(leaf.block, j)) continue;
      for (std::int64_t c = first; c < end; ++c) {
        keys[j * width + c] =
            leaf.block.keys_t[c * kBlockTokens + j] - leaf.mean_key[c * leaf.mean_stride];
      }
    }
  }
  const std::int64_t columns = layout.padded_value_dim;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    const bool valid = IsValid(leaf.block, j);
    for (std::int64_t c = 0; c < columns; ++c) {
      values[j * columns + c] =
          valid ? leaf.block.values[j * columns + c] - leaf.mean_value[c] : 0.0F;
    }
  }
}

}  // namespace attnd::engine
