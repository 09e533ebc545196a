#include "engine/kde/index/leaf_summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/simd/leaf_sums.h"

namespace attnd::engine {
namespace {

using Weights = std::array<double, kBlockTokens>;

// Weights of the keys, 0 for rows that are not valid; returns ln sum exp(q0 . k).
double WeighKeys(const BlockLayout& layout, const BlockView<float>& block, const float* centre,
                 Weights& weights) {
  weights.fill(0.0);
  if (centre != nullptr) KeyProducts(block.keys_t, layout.key_dim, centre, weights.data());
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
                          const float* centre, const LeafSummary& to) {
  Weights weights;
  Weights distances;
  double log_count = WeighKeys(layout, block, centre, weights);
  MeanKey(block.keys_t, layout.key_dim, weights.data(), to.mean_key, to.mean_stride);
  MeanValue(block.values, layout.padded_value_dim, weights.data(), to.mean_value);
  SquaredDistances({block.keys_t, layout.key_dim, to.mean_key, to.mean_stride}, distances.data());
  for (std::int64_t c = 0; centre != nullptr && c < layout.key_dim; ++c) {
    log_count -=
        static_cast<double>(centre[c]) * static_cast<double>(to.mean_key[c * to.mean_stride]);
  }
  double variance = 0.0;
  double radius = 0.0;
  double noise = 0.0;
  for (std::size_t j = 0; j < weights.size(); ++j) {
    to.roots[j] = static_cast<float>(std::sqrt(weights[j]));
    if (((block.valid >> j) & 1U) == 0) continue;
    variance += weights[j] * distances[j];
    radius = std::max(radius, distances[j]);
    noise += weights[j] * weights[j];
  }
  return {static_cast<float>(log_count), static_cast<float>(noise),
          static_cast<float>(variance / static_cast<double>(layout.key_dim)),
          // Rounded up, so that the bound holds with what f32 makes of it.
          static_cast<float>(std::sqrt(radius) * (1.0 + 1e-6))};
}

void CentreLeaf(const BlockLayout& layout, const LeafMeans& leaf, std::int64_t width, float* keys,
                float* values) {
  CentreKeys({leaf.block.keys_t, layout.key_dim, leaf.mean_key, leaf.mean_stride}, leaf.roots,
             width, keys);
  CentreValues(leaf.block.values, layout.padded_value_dim, leaf.mean_value, leaf.roots, values);
}

}  // namespace attnd::engine
