// The figures that engine and server are held to, each measured by one file of this directory.
//
// A bar is a number and its target, mostly a ratio of two times that are taken in the same run, the
// parts timed alone. The engine's bars run on the calling thread.
#ifndef ATTND_TESTS_BENCH_BARS_H_
#define ATTND_TESTS_BENCH_BARS_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
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

inline double Median(std::vector<double> numbers) {
  const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
  std::nth_element(numbers.begin(), middle, numbers.end());
  return *middle;
}

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
  return Median(std::move(seconds));
}

// linear_append_MAP, linear_attend_MAP for each map of map_list.h and each activation of learned
// maps (64 features from as many numbers, biases, each side its own weights): d = d_v = 64, 4,096
// rows, against (sgemm at the same block shapes + the map's elementwise functions + the f64 fold).
std::vector<Bar> LinearBars(const BenchOptions& options);

// exact_many_queries_of_fma_peak: 16,384 queries over as many tokens, d = 64, counting 4 n^2 d
// operations. exact_one_query_{f32,bf16}_of_read_bandwidth: one query over 131,072 tokens, d = 64.
std::vector<Bar> ExactBars(const BenchOptions& options);

// window_linear_{append,attend}: a linear layer with a window of 65,536 tokens after 131,072 of
// them, elu + 1, c = d_v = 64, to one without a window. Prints memory and times of both engines
// without a window, with one of 4,096 and one of 65,536.
std::vector<Bar> WindowBars(const BenchOptions& options);

// No bars: prints times of decays and delta rules beside those of a plain sum.
std::vector<Bar> GatedBars(const BenchOptions& options);

// kde_N[_own]_at_ERROR: how many times as fast as the exact engine the kde engine answers within a
// relative operator-norm error, on word vectors, with and without the queries' own positions; void
// (0) where the exact engine is below 60 % of the FMA peak. kde_N_upkeep: keeping the index, of one
// exact pass of n queries. kde_growth: exponent of n in the time of a query. Prints errors, and
// real heads.
std::vector<Bar> KdeBars(const BenchOptions& options);

// attend_one_query_of_echo: the p50 of an Attend of one query on a linear session (elu + 1,
// c = d_v = 64) to that of an echo of the same sizes, with 1 and with 8 calls under way; the worse.
std::vector<Bar> AttendLatencyBars(const BenchOptions& options);

// append_exact_of_echo: the p50 of an Append of 1 MiB to that of an echo.
// append_linear_beyond_echo_of_engine: what a linear session takes beyond the echo, in units of the
// engine's own time on the same tokens.
std::vector<Bar> AppendLatencyBars(const BenchOptions& options);

// fairness_added_p99_ms: what the p99 of one-query linear Attends gains while 4,096-query exact
// Attends over 131,072 tokens run back to back.
std::vector<Bar> FairnessBars(const BenchOptions& options);

// store_append_of_rocksdb_SIZE_{sync,nosync}: bytes a second that the store on disk takes, in
// batches of one value, of those that RocksDB takes with the same options, values and syncs.
std::vector<Bar> StoreBars(const BenchOptions& options);

// The bars that are measured together.
struct Group {
  const char* name;
  std::vector<Bar> (*bars)(const BenchOptions& options);
};

// The main function of a benchmark program: NAME [GROUP...], all groups without arguments. Prints
// the machine, what was measured, and at the end one line per bar, `bar NAME VALUE TARGET
// pass|fail`. Exit status: 0 when all pass, 1 when one fails, 2 for an unknown group.
int BenchMain(std::span<const Group> groups, int argc, char** argv);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_BARS_H_
