#include "engine/kde/paper/sampled_density.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "engine/kde/paper/log_sum.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kGroups = 8;
// Fewer say nothing about their own error.
constexpr std::int64_t kFirstCheck = 64 * kGroups;

struct Groups {
  std::array<LogSum, kGroups> sums;
};

// Mean, median and standard error of the groups' means, all relative to e^log_unit.
struct Summary {
  double log_unit = kLogZero;
  double mean = 0;
  double median = 0;
  double error = 0;
};

Summary Summarise(const Groups& groups, std::int64_t samples) {
  std::array<double, kGroups> logs{};
  for (std::size_t g = 0; g < kGroups; ++g) logs[g] = groups.sums[g].Log();
  Summary summary;
  const double largest = *std::max_element(logs.begin(), logs.end());
  if (largest == kLogZero) return summary;
  std::array<double, kGroups> means{};
  for (std::size_t g = 0; g < kGroups; ++g) means[g] = std::exp(logs[g] - largest);
  std::sort(means.begin(), means.end());
  summary.log_unit =
      largest - std::log(static_cast<double>(samples) / static_cast<double>(kGroups));
  summary.median = (means[kGroups / 2 - 1] + means[kGroups / 2]) / 2;
  for (const double mean : means) summary.mean += mean / kGroups;
  for (const double mean : means) {
    const double off = mean - summary.mean;
    summary.error += off * off / (kGroups * (kGroups - 1));
  }
  summary.error = std::sqrt(summary.error);
  return summary;
}

class SampledRun final : public DensityRun {
 public:
  SampledRun(std::unique_ptr<Sampler> sampler, Rows queries, const SamplingRule& rule,
             double* log_densities)
      : sampler_(std::move(sampler)),
        rule_(rule),
        log_densities_(log_densities),
        groups_(static_cast<std::size_t>(queries.count)),
        log_terms_(static_cast<std::size_t>(queries.count)) {
    for (std::int64_t q = 0; q < queries.count; ++q) active_.push_back(q);
    next_check_ = NextCheck(kFirstCheck);
  }

  bool Step(Scratch& scratch) override {
    for (std::int64_t i = 0; i < sampler_->step_samples() && !active_.empty(); ++i) {
      evaluations_ += sampler_->Sample(sample_, active_, log_terms_.data(), scratch);
      const auto group = static_cast<std::size_t>(sample_ % kGroups);
      for (std::size_t a = 0; a < active_.size(); ++a) {
        groups_[static_cast<std::size_t>(active_[a])].sums[group].Add(log_terms_[a]);
      }
      ++sample_;
      if (sample_ == next_check_) Check();
    }
    return active_.empty();
  }
  std::int64_t evaluations() const override { return evaluations_; }

 private:
  bool adaptive() const { return rule_.epsilon > 0; }

  std::int64_t NextCheck(std::int64_t wanted) const {
    return adaptive() ? std::min(wanted, rule_.samples) : rule_.samples;
  }

  // Answers the queries that have had enough samples.
  void Check() {
    const bool last = sample_ >= rule_.samples;
    std::erase_if(active_, [&](std::int64_t query) {
      const Groups& groups = groups_[static_cast<std::size_t>(query)];
      if (!adaptive()) {
        // The groups need not be of one size.
        LogSum all;
        for (const LogSum& sum : groups.sums) all.Add(sum.Log());
        log_densities_[query] = all.Log() - std::log(static_cast<double>(rule_.samples));
        return true;
      }
      const Summary summary = Summarise(groups, sample_);
      const double limit = rule_.epsilon / 3 * summary.mean;
      const double log_mean = summary.log_unit + std::log(summary.mean);
      if (summary.mean > 0 && log_mean >= rule_.log_lower_bound && summary.error <= limit &&
          std::abs(summary.median - summary.mean) <= limit) {
        log_densities_[query] = log_mean;
        return true;
      }
      if (!last) return false;
      const double log_median =
          summary.median > 0 ? summary.log_unit + std::log(summary.median) : kLogZero;
      log_densities_[query] = log_median >= rule_.log_lower_bound ? log_median : kLogZero;
      return true;
    });
    next_check_ = NextCheck(2 * sample_);
  }

  const std::unique_ptr<Sampler> sampler_;
  const SamplingRule rule_;
  double* const log_densities_;
  std::vector<Groups> groups_;
  std::vector<double> log_terms_;
  std::vector<std::int64_t> active_;
  std::int64_t sample_ = 0;
  std::int64_t next_check_ = 0;
  std::int64_t evaluations_ = 0;
};

}  // namespace

std::unique_ptr<DensityRun> MakeSampledRun(std::unique_ptr<Sampler> sampler, Rows queries,
                                           const SamplingRule& rule, double* log_densities) {
  return std::make_unique<SampledRun>(std::move(sampler), queries, rule, log_densities);
}

}  // namespace attnd::engine
