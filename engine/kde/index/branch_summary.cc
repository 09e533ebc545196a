#include "engine/kde/index/branch_summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace attnd::engine {
namespace {

using Weights = std::array<double, kBranchLeaves>;

// The leaves of a branch.
struct Members {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

double CentreProduct(const float* centre, const float* mean_key, std::int64_t dim) {
  double product = 0.0;
  for (std::int64_t c = 0; centre != nullptr && c < dim; ++c) {
    product += static_cast<double>(centre[c]) * static_cast<double>(mean_key[c * kBlockTokens]);
  }
  return product;
}

// Returns ln sum exp(q0 . k) of the branch's keys.
double WeighLeaves(const SummaryTable& leaves, const float* centre, const Members& members,
                   Weights& weights) {
  double max = -std::numeric_limits<double>::infinity();
  weights.fill(-std::numeric_limits<double>::infinity());
  for (std::int64_t i = 0; i < members.count; ++i) {
    const std::int64_t leaf = members.first + i;
    double& weight = weights[static_cast<std::size_t>(i)];
    weight = static_cast<double>(leaves.stats().log_counts[leaf]) +
             CentreProduct(centre, leaves.mean_key(leaf), leaves.layout().key_dim);
    max = std::max(max, weight);
  }
  double sum = 0.0;
  for (double& weight : weights) {
    weight = std::exp(weight - max);
    sum += weight;
  }
  for (double& weight : weights) weight /= sum;
  return max + std::log(sum);
}

}  // namespace

void SummarizeBranch(const SummaryTable& leaves, const LeafMetric* metric, std::int64_t branch,
                     SummaryTable& branches) {
  const BlockLayout& layout = leaves.layout();
  const LeafStats stats = leaves.stats();
  const std::int64_t first = branch * kBranchLeaves;
  const Members members = {first, std::min(kBranchLeaves, leaves.count() - first)};
  const float* centre = metric == nullptr ? nullptr : metric->centre();
  Weights weights;
  double log_count = WeighLeaves(leaves, centre, members, weights);

  float* mean_key = branches.mean_key(branch);
  Weights distances{};
  for (std::int64_t c = 0; c < layout.key_dim; ++c) {
    const float* component = leaves.mean_key(first) + c * kBlockTokens;
    double mean = 0.0;
    for (std::int64_t i = 0; i < members.count; ++i) {
      mean += weights[static_cast<std::size_t>(i)] * static_cast<double>(component[i]);
    }
    mean_key[c * kBlockTokens] = static_cast<float>(mean);
    for (std::int64_t i = 0; i < members.count; ++i) {
      const double off =
          static_cast<double>(component[i]) - static_cast<double>(mean_key[c * kBlockTokens]);
      distances[static_cast<std::size_t>(i)] += off * off;
    }
  }
  log_count -= CentreProduct(centre, mean_key, layout.key_dim);

  float* mean_value = branches.mean_value(branch);
  for (std::int64_t c = 0; c < layout.padded_value_dim; ++c) {
    double mean = 0.0;
    for (std::int64_t i = 0; i < members.count; ++i) {
      mean += weights[static_cast<std::size_t>(i)] *
              static_cast<double>(leaves.mean_value(first + i)[c]);
    }
    mean_value[c] = static_cast<float>(mean);
  }

  double noise = 0.0;
  double variance = 0.0;
  double radius = 0.0;
  double slope = 0.0;
  std::vector<float> key(static_cast<std::size_t>(layout.key_dim));
  std::vector<float> value(static_cast<std::size_t>(layout.padded_value_dim));
  for (std::int64_t i = 0; i < members.count; ++i) {
    const std::int64_t leaf = first + i;
    const double weight = weights[static_cast<std::size_t>(i)];
    const double distance = distances[static_cast<std::size_t>(i)];
    noise += weight * weight * static_cast<double>(stats.noises[leaf]);
    variance += weight * (static_cast<double>(stats.variances[leaf]) +
                          distance / static_cast<double>(layout.key_dim));
    radius = std::max(radius, std::sqrt(distance) + static_cast<double>(stats.radii[leaf]));
    if (metric == nullptr) continue;
    for (std::size_t c = 0; c < key.size(); ++c) {
      const std::size_t at = c * static_cast<std::size_t>(kBlockTokens);
      key[c] = leaves.mean_key(leaf)[at] - mean_key[at];
    }
    for (std::size_t c = 0; c < value.size(); ++c) {
      value[c] = leaves.mean_value(leaf)[c] - mean_value[c];
    }
    slope += weight *
             (static_cast<double>(stats.slopes[leaf]) + metric->Along(key.data(), value.data()));
  }
  branches.Set(branch, {static_cast<float>(log_count), static_cast<float>(noise),
                        static_cast<float>(variance),
                        // Rounded up, so that the bound holds with what f32 makes of it.
                        static_cast<float>(radius * (1.0 + 1e-6))});
  branches.SetSlope(branch, std::isfinite(slope) ? static_cast<float>(slope) : 0.0F);
}

}  // namespace attnd::engine
