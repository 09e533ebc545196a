#include "engine/kde/paper/weighted_exp_density.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/kde/paper/log_sum.h"
#include "engine/random.h"

namespace attnd::engine {

absl::StatusOr<std::unique_ptr<WeightedExpDensity>> WeightedExpDensity::Create(
    Rows data, const double* log_weights, Rows queries, const WeightedExpConfig& config,
    double* log_densities) {
  if (data.count < 1 || data.dim < 1) {
    return absl::InvalidArgumentError(absl::StrCat("data are ", data.count, " rows of ", data.dim,
                                                   " numbers; each must be at least 1"));
  }
  if (queries.dim != data.dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("queries have ", queries.dim, " numbers; the data have ", data.dim));
  }
  if (!(config.epsilon > 0 && config.epsilon <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("epsilon is ", config.epsilon, "; it must be above 0 and at most 1"));
  }
  std::unique_ptr<WeightedExpDensity> made(new WeightedExpDensity(queries, config, log_densities));
  made->Augment(data, log_weights);
  return made;
}

void WeightedExpDensity::Augment(Rows data, const double* log_weights) {
  LogSum total;
  std::vector<double> log_shares;  // ln(v_i e^{||x_i||^2 / 2})
  rows_.reserve(static_cast<std::size_t>(data.count * data.dim));
  log_shares.reserve(static_cast<std::size_t>(data.count));
  for (std::int64_t i = 0; i < data.count; ++i) {
    const double log_weight = log_weights == nullptr ? 0 : log_weights[i];
    if (log_weight == kLogZero) continue;
    const float* row = data.row(i);
    rows_.insert(rows_.end(), row, row + data.dim);
    log_shares.push_back(log_weight + DotF64(row, row, data.dim) / 2);
    total.Add(log_shares.back());
  }
  log_total_ = total.Log();
  heights_squared_.reserve(log_shares.size());
  for (const double log_share : log_shares) {
    heights_squared_.push_back(2 * std::max(log_total_ - log_share, 0.0));
  }
  const auto count = static_cast<std::int64_t>(log_shares.size());
  points_ = {DenseRows(rows_.data(), count, data.dim), heights_squared_.data()};
  log_lower_bound_ = -std::log(static_cast<double>(std::max<std::int64_t>(count, 1)));
  if (count == 0) {
    std::fill_n(log_densities_, queries_.count, kLogZero);
    return;
  }
  pending_.resize(static_cast<std::size_t>(queries_.count));
  std::iota(pending_.begin(), pending_.end(), 0);
}

void WeightedExpDensity::BeginRound() {
  pending_rows_.clear();
  pending_rows_.reserve(pending_.size() * static_cast<std::size_t>(queries_.dim));
  for (const std::int64_t query : pending_) {
    pending_rows_.insert(pending_rows_.end(), queries_.row(query),
                         queries_.row(query) + queries_.dim);
  }
  pending_logs_.assign(pending_.size(), kLogZero);
  const auto count = static_cast<std::int64_t>(pending_.size());
  const double exact_operations = static_cast<double>(count) *
                                  static_cast<double>(points_.rows.count) *
                                  static_cast<double>(points_.rows.dim + 1);
  exact_ = true;
  if (config_.method != DensityMethod::kExact) {
    ++costs_.bounds;
    const auto round = static_cast<std::uint64_t>(costs_.bounds);
    auto sampled = PreprocessDensity(points_, {config_.method, config_.epsilon, log_lower_bound_,
                                               StreamSeed(config_.seed, round)});
    exact_ = !sampled.ok() ||
             (!config_.always_sample && (*sampled)->Operations(count) >= exact_operations);
    if (!exact_) density_ = *std::move(sampled);
  }
  if (exact_) density_ = MakeExactDensity(points_);
  run_ =
      density_->Query(DenseRows(pending_rows_.data(), count, queries_.dim), pending_logs_.data());
}

void WeightedExpDensity::EndRound() {
  const double log_factor = std::log(static_cast<double>(points_.rows.count)) + log_total_;
  std::vector<std::int64_t> left;
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const std::int64_t query = pending_[i];
    if (pending_logs_[i] == kLogZero && !exact_) {
      left.push_back(query);
      continue;
    }
    const float* row = queries_.row(query);
    log_densities_[query] = pending_logs_[i] + log_factor + DotF64(row, row, queries_.dim) / 2;
  }
  if (exact_) costs_.exact_queries += static_cast<std::int64_t>(pending_.size());
  costs_.evaluations += run_->evaluations();
  run_.reset();
  pending_ = std::move(left);
  log_lower_bound_ -= std::log(kBoundFactor);
}

bool WeightedExpDensity::Step(Scratch& scratch) {
  if (pending_.empty()) return true;
  if (run_ == nullptr) BeginRound();
  if (run_->Step(scratch)) EndRound();
  return pending_.empty();
}

WeightedExpCosts WeightedExpDensity::costs() const { return costs_; }

double RefLogWeightedExp(Rows data, const double* log_weights, const float* query) {
  double max = kLogZero;
  std::vector<double> logs;
  for (std::int64_t i = 0; i < data.count; ++i) {
    double log_term = log_weights == nullptr ? 0 : log_weights[i];
    for (std::int64_t c = 0; c < data.dim; ++c) {
      log_term += static_cast<double>(data.row(i)[c]) * static_cast<double>(query[c]);
    }
    logs.push_back(log_term);
    max = std::max(max, log_term);
  }
  if (max == kLogZero) return kLogZero;
  double sum = 0;
  for (const double log_term : logs) sum += std::exp(log_term - max);
  return max + std::log(sum);
}

}  // namespace attnd::engine
