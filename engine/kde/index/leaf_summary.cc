#include "engine/kde/index/leaf_summary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace attnd::engine {
namespace {

using Weights = std::array<double, kBlockTokens>;

// Weights of the keys, 0 for rows that are not valid; returns ln sum exp(q0 . k).
double WeighKeys(const BlockLayout& layout, const BlockView<float>& block, const float* centre,
                 Weights& weights) {
  weights.fill(0.0);
  for (std::int64_t c = 0; centre != nullptr && c < layout.key_dim; ++c) {
    const float* component = block.keys_t + c * kBlockTokens;
    const auto of_centre = static_cast<double>(centre[c]);
    for (std::size_t j = 0; j < weights.size(); ++j) {
      weights[j] += of_centre * static_cast<double>(component[j]);
    }
  }
  double max = -std::numeric_limits<double>::infinity();
  const auto valid = [&](std::size_t j) { return ((block.valid >> j) & 1U) != 0; };
  for (std::size_t j = 0; j < weights.size(); ++j) {
    if (valid(j)) max = std::max(max, weights[j]);
  }
  double sum = 0.0;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    weights[j] = valid(j) ? std::exp(weights[j] - max) : 0.0;
    sum += weights[j];
  }
  for (double& weight : weights) weight /= sum;
  return max + std::log(sum);
}

}  // namespace

LeafNumbers SummarizeLeaf(const BlockLayout& layout, const BlockView<float>& block,
                          const float* centre, float* mean_key, std::int64_t mean_stride,
                          float* mean_value) {
  Weights weights;
  double log_count = WeighKeys(layout, block, centre, weights);
  Weights distances{};
  for (std::int64_t c = 0; c < layout.key_dim; ++c) {
    const float* component = block.keys_t + c * kBlockTokens;
    // Four sums, so that they need not wait for each other.
    std::array<double, 4> sums{};
    for (std::size_t j = 0; j < weights.size(); ++j) {
      sums[j % 4] += weights[j] * static_cast<double>(component[j]);
    }
    const auto mean = static_cast<float>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    mean_key[c * mean_stride] = mean;
    if (centre != nullptr) log_count -= static_cast<double>(centre[c]) * static_cast<double>(mean);
    for (std::size_t j = 0; j < weights.size(); ++j) {
      const double off = static_cast<double>(component[j]) - static_cast<double>(mean);
      distances[j] += off * off;
    }
  }
  double variance = 0.0;
  double radius = 0.0;
  double noise = 0.0;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    if (((block.valid >> j) & 1U) == 0) continue;
    variance += weights[j] * distances[j];
    radius = std::max(radius, distances[j]);
    noise += weights[j] * weights[j];
  }
  std::array<double, 16> sums{};
  for (std::int64_t c = 0; c < layout.padded_value_dim; c += 16) {
    sums.fill(0.0);
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      const float* values = block.values + j * layout.padded_value_dim + c;
      const double weight = weights[static_cast<std::size_t>(j)];
      for (std::size_t i = 0; i < sums.size(); ++i) {
        sums[i] += weight * static_cast<double>(values[i]);
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      mean_value[c + static_cast<std::int64_t>(i)] = static_cast<float>(sums[i]);
    }
  }
  return {static_cast<float>(log_count), static_cast<float>(noise),
          static_cast<float>(variance / static_cast<double>(layout.key_dim)),
          // Rounded up, so that the bound holds with what f32 makes of it.
          static_cast<float>(std::sqrt(radius) * (1.0 + 1e-6))};
}

void CentreLeaf(const BlockLayout& layout, const LeafMeans& leaf, std::int64_t width, float* keys,
                float* values) {
  Weights weights;
  WeighKeys(layout, leaf.block, leaf.centre, weights);
  std::array<float, kBlockTokens> roots;
  for (std::size_t j = 0; j < roots.size(); ++j) {
    roots[j] = static_cast<float>(std::sqrt(weights[j]));
  }
  std::fill_n(keys, kBlockTokens * width, 0.0F);
  // Transposed in pieces of 16 components, which stay in the first-level cache.
  for (std::int64_t first = 0; first < layout.key_dim; first += 16) {
    const std::int64_t end = std::min(first + 16, layout.key_dim);
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      const float root = roots[static_cast<std::size_t>(j)];
      for (std::int64_t c = first; c < end; ++c) {
        const float off =
            leaf.block.keys_t[c * kBlockTokens + j] - leaf.mean_key[c * leaf.mean_stride];
        keys[j * width + c] = root * off;
      }
    }
  }
  const std::int64_t columns = layout.padded_value_dim;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    const float root = roots[static_cast<std::size_t>(j)];
    for (std::int64_t c = 0; c < columns; ++c) {
      values[j * columns + c] = root * (leaf.block.values[j * columns + c] - leaf.mean_value[c]);
    }
  }
}

}  // namespace attnd::engine
