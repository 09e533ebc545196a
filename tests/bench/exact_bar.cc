// Exact attention against the two limits of the machine: multiply-adds with many queries, reading
// memory with one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/block.h"
#include "engine/exact/exact_engine.h"
#include "tests/bench/bars.h"
#include "tests/bench/machine.h"

namespace attnd::bench {
namespace {

using engine::kBlockTokens;

constexpr std::int64_t kDim = 64;
constexpr engine::LayerShape kShape = {1, 1, kDim, kDim, 0.125F};
constexpr std::int64_t kQueries = 16384;
constexpr std::int64_t kContext = 131072;
constexpr double kFmaTarget = 0.6;
constexpr double kReadTarget = 0.8;

// More than any last-level cache holds, so that every pass reads memory.
constexpr std::int64_t kMemoryBytes = std::int64_t{256} << 20;

std::vector<float> Numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

std::unique_ptr<const engine::Engine> MakeEngine(engine::DataType storage) {
  auto made = engine::MakeExactEngine(kShape, {.storage = storage});
  if (!made.ok()) std::abort();
  return std::move(made).value();
}

std::shared_ptr<engine::SealedState> Sealed(const engine::Engine& exact, std::int64_t tokens,
                                            std::vector<float> keys, std::vector<float> values) {
  exact.RoundToStorage(keys.data(), tokens * kDim);
  exact.RoundToStorage(values.data(), tokens * kDim);
  std::vector<engine::Block> blocks;
  for (std::int64_t t = 0; t < tokens; t += kBlockTokens) {
    blocks.push_back(
        {keys.data() + t * kDim, values.data() + t * kDim, ~engine::RowMask{0}, nullptr});
  }
  std::shared_ptr<engine::SealedState> state = exact.NewState();
  engine::Scratch scratch;
  if (!exact.Seal(*state, 0, blocks, scratch).ok()) std::abort();
  return state;
}

void Attend(const engine::SealedState& state, std::int64_t tokens,
            const std::vector<float>& queries, engine::AttendPlan& plan, engine::Scratch& scratch,
            std::vector<float>& outputs) {
  engine::QueryGroup group;
  group.sealed = &state;
  group.sealed_tokens = tokens;
  group.queries = queries.data();
  group.count = static_cast<std::int64_t>(queries.size()) / kDim;
  outputs.resize(queries.size());
  plan.Reset(group, {.outputs = outputs.data()});
  for (std::int64_t chain = 0; chain < plan.chains(); ++chain) {
    while (!plan.Run(chain, scratch)) {
    }
  }
  plan.Finish(scratch);
}

// The median over the repetitions, after one that does not count, in the calling thread's processor
// time, as machine.h measures what it is compared with: other processes do not count.
template <typename Run>
double MedianThreadSeconds(const BenchOptions& options, const Run& run) {
  run();
  std::vector<double> seconds;
  for (int i = 0; i < options.repetitions; ++i) {
    const double start = ThreadSeconds();
    run();
    seconds.push_back(ThreadSeconds() - start);
  }
  return Median(std::move(seconds));
}

Bar ManyQueries(const BenchOptions& options) {
  const auto exact = MakeEngine(engine::DataType::kF32);
  const auto state =
      Sealed(*exact, kQueries, Numbers(kQueries * kDim, 1), Numbers(kQueries * kDim, 2));
  const std::vector<float> queries = Numbers(kQueries * kDim, 3);
  const auto plan = exact->NewPlan();
  engine::Scratch scratch;
  std::vector<float> outputs;
  const double seconds =
      MedianSeconds(options, [&] { Attend(*state, kQueries, queries, *plan, scratch, outputs); });
  const double gflops = 4e-9 * static_cast<double>(kQueries * kQueries * kDim) / seconds;
  const double peak = MeasureFmaPeakGflops();
  std::printf("exact, %lld queries over as many tokens: %.0f ms, %.1f GFLOP/s; FMA peak %.1f\n",
              static_cast<long long>(kQueries), seconds * 1e3, gflops, peak);
  return {"exact_many_queries_of_fma_peak", gflops / peak, kFmaTarget, false};
}

Bar OneQuery(const BenchOptions& options, engine::DataType storage, const std::string& name) {
  const auto exact = MakeEngine(storage);
  const std::int64_t bytes = 2 * kContext * kDim * engine::ElementBytes(storage);
  const std::vector<float> keys = Numbers(kContext * kDim, 4);
  const std::vector<float> values = Numbers(kContext * kDim, 5);
  std::vector<std::shared_ptr<engine::SealedState>> states;
  for (std::int64_t held = 0; held < kMemoryBytes; held += bytes) {
    states.push_back(Sealed(*exact, kContext, keys, values));
  }
  const std::vector<float> query = Numbers(kDim, 6);
  const auto plan = exact->NewPlan();
  engine::Scratch scratch;
  std::vector<float> outputs;
  std::size_t next = 0;
  ReadBandwidth memory(kMemoryBytes);
  std::vector<double> rates;
  std::vector<double> limits;
  std::vector<double> ratios;
  for (int round = 0; round < 3 * options.repetitions; ++round) {
    const double seconds = MedianThreadSeconds({3}, [&] {
      Attend(*states[next++ % states.size()], kContext, query, *plan, scratch, outputs);
    });
    rates.push_back(1e-9 * static_cast<double>(bytes) / seconds);
    limits.push_back(memory.MeasureGBps());
    ratios.push_back(rates.back() / limits.back());
  }
  const double rate = Median(rates);
  std::printf("exact, one query over %lld %s tokens: %.2f ms, %.1f GB/s; read bandwidth %.1f\n",
              static_cast<long long>(kContext), name.c_str(),
              1e-6 * static_cast<double>(bytes) / rate, rate, Median(limits));
  return {"exact_one_query_" + name + "_of_read_bandwidth", Median(ratios), kReadTarget, false};
}

}  // namespace

std::vector<Bar> ExactBars(const BenchOptions& options) {
  return {ManyQueries(options), OneQuery(options, engine::DataType::kF32, "f32"),
          OneQuery(options, engine::DataType::kBf16, "bf16")};
}

}  // namespace attnd::bench
