#include "engine/kde/paper/density.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/kde/paper/hash_family.h"
#include "engine/kde/paper/log_sum.h"

namespace attnd::engine {
namespace {

// ln of the relative variance of one sample, at most.
double LogVariance(const DensityConfig& config) {
  return config.method == DensityMethod::kUniform
             ? -config.log_lower_bound
             : HashFamily(config.log_lower_bound).log_relative_variance();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Density>> PreprocessDensity(const DensityPoints& points,
                                                                 const DensityConfig& config) {
  if (points.rows.count < 1 || points.rows.dim < 1) {
    return absl::InvalidArgumentError(absl::StrCat("points are ", points.rows.count, " rows of ",
                                                   points.rows.dim,
                                                   " numbers; each must be at least 1"));
  }
  if (!(config.epsilon > 0 && config.epsilon <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("epsilon is ", config.epsilon, "; it must be above 0 and at most 1"));
  }
  if (!(config.log_lower_bound <= 0) || std::isinf(config.log_lower_bound)) {
    return absl::InvalidArgumentError(absl::StrCat("log_lower_bound is ", config.log_lower_bound,
                                                   "; it must be finite and at most 0"));
  }
  if (config.method == DensityMethod::kExact) return MakeExactDensity(points);
  const double log_samples = std::log(9.0) + LogVariance(config) - 2 * std::log(config.epsilon);
  const std::int64_t most =
      config.method == DensityMethod::kUniform ? kMaxUniformSamples : kMaxHashingSamples;
  if (!(log_samples <= std::log(static_cast<double>(most)))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("epsilon ", config.epsilon, " and log_lower_bound ", config.log_lower_bound,
                     " ask for e^", log_samples, " samples; the limit is ", most));
  }
  const auto samples = static_cast<std::int64_t>(std::ceil(std::exp(log_samples)));
  return config.method == DensityMethod::kUniform ? MakeUniformDensity(points, config, samples)
                                                  : MakeHashingDensity(points, config, samples);
}

double LogKernel(const DensityPoints& points, std::int64_t i, const float* query) {
  double squares = points.height_squared(i);
  const float* point = points.rows.row(i);
  for (std::int64_t c = 0; c < points.rows.dim; ++c) {
    const double off = static_cast<double>(query[c]) - static_cast<double>(point[c]);
    squares += off * off;
  }
  return -squares / 2;
}

double RefLogDensity(const DensityPoints& points, const float* query) {
  std::vector<double> exponents;
  for (std::int64_t i = 0; i < points.rows.count; ++i) {
    exponents.push_back(LogKernel(points, i, query));
  }
  const double max = *std::max_element(exponents.begin(), exponents.end());
  if (max == kLogZero) return kLogZero;
  double sum = 0;
  for (const double exponent : exponents) sum += std::exp(exponent - max);
  return max + std::log(sum / static_cast<double>(points.rows.count));
}

void RunToEnd(DensityRun& run, Scratch& scratch) {
  while (!run.Step(scratch)) {
  }
}

}  // namespace attnd::engine
