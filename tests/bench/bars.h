// The figures that the engine is held to, each measured by one file of this directory.
//
// A bar is a number and its target, mostly a ratio of two times that are taken in the same run, the
// parts timed alone. Everything runs on the calling thread.
#ifndef ATTND_TESTS_BENCH_BARS_H_
#define ATTND_TESTS_BENCH_BARS_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace attnd::bench {

struct Bar {
  std::string name;
  double value = 0;
  double target = 0;
  bool at_most = true;  // else at least
};

struct BenchOptions {
  int repetitions = 9;  // of which the median counts
};

// The median time of run(), in seconds, after one run that does not count.
template <typename Run>
double MedianSeconds(const BenchOptions& options, const Run& run) {
  run();
  std::vector<double> seconds;
  for (int i = 0; i < options.repetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

// linear_append, linear_attend: elu + 1, c = d_v = 64, 4,096 rows, against (sgemm at the same block
// shapes + exp over n * c elements + the f64 fold).
std::vector<Bar> LinearBars(const BenchOptions& options);

// exact_many_queries_of_fma_peak: 16,384 queries over as many tokens, d = 64, counting 4 n^2 d
// operations. exact_one_query_{f32,bf16}_of_read_bandwidth: one query over 131,072 tokens, d = 64.
std::vector<Bar> ExactBars(const BenchOptions& options);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_BARS_H_
