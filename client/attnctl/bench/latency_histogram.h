// Counts of latencies with a relative resolution better than 1/1000 from 1 ns to 292 years.
//
// Log-linear buckets as in HdrHistogram: values below 2048 ns are exact, above that every power of
// two is cut into 1,024 equal parts. A fixed 0.5 MB; recording is an increment. Not thread-safe:
// one per worker, merged at the end.
#ifndef ATTND_CLIENT_ATTNCTL_BENCH_LATENCY_HISTOGRAM_H_
#define ATTND_CLIENT_ATTNCTL_BENCH_LATENCY_HISTOGRAM_H_

#include <cstdint>
#include <vector>

namespace attnd::attnctl {

class LatencyHistogram {
 public:
  LatencyHistogram();

  // Negative values count as 0.
  void Record(std::int64_t nanoseconds);
  void Merge(const LatencyHistogram& other);

  std::int64_t count() const { return count_; }
  // Exact; 0 if nothing was recorded.
  std::int64_t max() const { return max_; }
  double mean() const;
  // The smallest recorded value that at least q * count values do not exceed, 0 < q <= 1, up to the
  // resolution (never above max()); 0 if nothing was recorded.
  std::int64_t Quantile(double q) const;

 private:
  std::vector<std::int64_t> counts_;
  std::int64_t count_ = 0;
  std::int64_t max_ = 0;
  double sum_ = 0;
};

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_BENCH_LATENCY_HISTOGRAM_H_
