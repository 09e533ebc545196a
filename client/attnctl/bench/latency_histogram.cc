#include "client/attnctl/bench/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace attnd::attnctl {
namespace {

constexpr int kPartBits = 10;
constexpr std::int64_t kParts = std::int64_t{1} << kPartBits;
constexpr std::int64_t kBuckets = (64 - kPartBits) * kParts;

// Values below 2 * kParts are their own bucket; one whose highest bit is 2^(kPartBits + e) falls
// into part value >> e of row e.
std::int64_t BucketOf(std::int64_t value) {
  const int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value)));
  const int e = std::max(width - kPartBits - 1, 0);
  return e * kParts + (value >> e);
}

// The largest value of a bucket.
std::int64_t UpperOf(std::int64_t bucket) {
  const std::int64_t e = std::max(bucket / kParts - 1, std::int64_t{0});
  // Not the next bucket's smallest value less 1: after the last one that is 2^63.
  return ((bucket - e * kParts) << e) + ((std::int64_t{1} << e) - 1);
}

}  // namespace

LatencyHistogram::LatencyHistogram() : counts_(static_cast<std::size_t>(kBuckets), 0) {}

void LatencyHistogram::Record(std::int64_t nanoseconds) {
  const std::int64_t value = std::max(nanoseconds, std::int64_t{0});
  ++counts_[static_cast<std::size_t>(BucketOf(value))];
  ++count_;
  max_ = std::max(max_, value);
  sum_ += static_cast<double>(value);
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  for (std::size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  max_ = std::max(max_, other.max_);
  sum_ += other.sum_;
}

double LatencyHistogram::mean() const {
  return count_ == 0 ? 0 : sum_ / static_cast<double>(count_);
}

std::int64_t LatencyHistogram::Quantile(double q) const {
  const auto wanted = static_cast<std::int64_t>(std::ceil(q * static_cast<double>(count_)));
  std::int64_t seen = 0;
  for (std::int64_t bucket = 0; bucket < kBuckets; ++bucket) {
    seen += counts_[static_cast<std::size_t>(bucket)];
    if (seen > 0 && seen >= wanted) return std::min(UpperOf(bucket), max_);
  }
  return max_;
}

}  // namespace attnd::attnctl
