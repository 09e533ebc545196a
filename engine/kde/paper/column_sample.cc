#include "engine/kde/paper/column_sample.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "engine/kde/paper/log_sum.h"
#include "engine/random.h"

namespace attnd::engine {

ColumnSample DrawColumns(std::span<const double> probabilities, std::int64_t draws, Draws kind,
                         std::uint64_t seed) {
  const std::size_t n = probabilities.size();
  ColumnSample sample;
  if (draws >= static_cast<std::int64_t>(n)) {
    sample.columns.resize(n);
    std::iota(sample.columns.begin(), sample.columns.end(), 0);
    sample.log_weights.assign(n, 0.0);
    return sample;
  }
  std::vector<double> cumulative(n);
  double total = 0;
  for (std::size_t l = 0; l < n; ++l) cumulative[l] = total += probabilities[l];
  std::vector<std::int64_t> counts(n, 0);
  for (std::int64_t r = 0; r < draws; ++r) {
    const double uniform = ToUniform(RandomAt(seed, static_cast<std::uint64_t>(r)));
    const double at = total * (kind == Draws::kIndependent ? uniform
                                                           : (static_cast<double>(r) + uniform) /
                                                                 static_cast<double>(draws));
    // The first column whose sum is above: never one with probability 0.
    const auto found = std::upper_bound(cumulative.begin(), cumulative.end(), at);
    const auto last = static_cast<std::ptrdiff_t>(n) - 1;
    ++counts[static_cast<std::size_t>(std::min(found - cumulative.begin(), last))];
  }
  for (std::size_t l = 0; l < n; ++l) {
    if (counts[l] == 0) continue;
    sample.columns.push_back(static_cast<std::int64_t>(l));
    const double expected = static_cast<double>(draws) * probabilities[l] / total;
    sample.log_weights.push_back(std::log(static_cast<double>(counts[l]) / expected));
  }
  return sample;
}

std::vector<double> MeanShares(std::span<const std::vector<double>> lists) {
  std::vector<double> mean;
  double count = 0;
  for (const std::vector<double>& list : lists) count += list.empty() ? 0 : 1;
  for (const std::vector<double>& list : lists) {
    if (list.empty()) continue;
    mean.resize(list.size(), 0.0);
    for (std::size_t l = 0; l < list.size(); ++l) mean[l] += list[l] / count;
  }
  return mean;
}

std::vector<double> SharesOfLogs(std::span<const double> logs) {
  LogSum total;
  for (const double x : logs) total.Add(x);
  const double log_total = total.Log();
  if (log_total == kLogZero) return {};
  std::vector<double> shares;
  for (const double x : logs) shares.push_back(std::exp(x - log_total));
  return shares;
}

std::vector<double> SharesOf(std::vector<double> numbers) {
  double total = 0;
  for (const double x : numbers) total += x;
  if (total == 0) return {};
  for (double& x : numbers) x /= total;
  return numbers;
}

std::vector<double> SharesOfNorms(Rows values) {
  std::vector<double> norms;
  for (std::int64_t i = 0; i < values.count; ++i) {
    norms.push_back(DotF64(values.row(i), values.row(i), values.dim));
  }
  return SharesOf(std::move(norms));
}

}  // namespace attnd::engine
