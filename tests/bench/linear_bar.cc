// Linear attention against the arithmetic it cannot do without.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "engine/block.h"
#include "engine/gemm.h"
#include "engine/linear/linear_engine.h"
#include "engine/simd/maps.h"
#include "engine/simd/totals.h"
#include "tests/bench/bars.h"

namespace attnd::bench {
namespace {

using engine::kBlockTokens;

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kDim = 64;                     // d_k = c = d_v
constexpr std::int64_t kColumns = 80;                 // [S | Z], padded
constexpr std::int64_t kTotals = kDim * kDim + kDim;  // S and Z
constexpr double kTarget = 1.25;

std::vector<float> Numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

struct Data {
  std::vector<float> keys = Numbers(kRows * kDim, 1);
  std::vector<float> values = Numbers(kRows * kDim, 2);
  std::vector<float> queries = Numbers(kRows * kDim, 3);

  std::vector<engine::Block> Blocks(std::int64_t count) const {
    std::vector<engine::Block> blocks;
    for (std::int64_t b = 0; b < count; ++b) {
      blocks.push_back({keys.data() + b * kBlockTokens * kDim,
                        values.data() + b * kBlockTokens * kDim, ~engine::RowMask{0}, nullptr});
    }
    return blocks;
  }
};

// The map over n * c elements, block by block.
double MapSeconds(const BenchOptions& options, const std::vector<float>& rows) {
  std::vector<float> features(static_cast<std::size_t>(kBlockTokens * kDim));
  return MedianSeconds(options, [&] {
    for (std::int64_t row = 0; row < kRows; row += kBlockTokens) {
      engine::EluPlusOne(rows.data() + row * kDim, features.data(), kBlockTokens * kDim);
    }
  });
}

Bar AppendBar(const BenchOptions& options, const engine::Engine& linear, const Data& data) {
  engine::Scratch scratch;
  const std::shared_ptr<engine::SealedState> state = linear.NewState();
  const std::vector<engine::Block> blocks = data.Blocks(kRows / kBlockTokens);
  const double whole = MedianSeconds(options, [&] {
    if (!linear.Seal(*state, 0, blocks, scratch).ok()) std::abort();
  });
  std::vector<float> sums(static_cast<std::size_t>(kTotals));
  const double products = MedianSeconds(options, [&] {
    for (std::int64_t row = 0; row < kRows; row += kBlockTokens) {
      engine::GemmTN(kDim, kDim, kBlockTokens, data.keys.data() + row * kDim, kDim,
                     data.values.data() + row * kDim, kDim, false, sums.data(), kDim);
    }
  });
  std::vector<double> totals(sums.size());
  const double fold = MedianSeconds(options, [&] {
    for (std::int64_t row = 0; row < kRows; row += kBlockTokens) {
      engine::AddToTotals(sums.data(), 1.0, totals.data(), kTotals);
    }
    engine::RoundTotals(totals.data(), sums.data(), kTotals);
  });
  const double map = MapSeconds(options, data.keys);
  std::printf("linear append of %lld rows: %.1f us; sgemm %.1f + exp %.1f + f64 fold %.1f us\n",
              static_cast<long long>(kRows), whole * 1e6, products * 1e6, map * 1e6, fold * 1e6);
  return {"linear_append", whole / (products + map + fold), kTarget, true};
}

Bar AttendBar(const BenchOptions& options, const engine::Engine& linear, const Data& data) {
  // The position after the append: 63 sealed blocks and an open block of 64 rows.
  engine::Scratch scratch;
  const std::shared_ptr<engine::SealedState> state = linear.NewState();
  const std::int64_t sealed = kRows - kBlockTokens;
  if (!linear.Seal(*state, 0, data.Blocks(sealed / kBlockTokens), scratch).ok()) std::abort();
  engine::Tail tail(linear.shape(), linear.tail_layout());
  std::copy_n(data.keys.data() + sealed * kDim, kBlockTokens * kDim, tail.keys.data());
  std::copy_n(data.values.data() + sealed * kDim, kBlockTokens * kDim, tail.values.data());
  linear.EncodeTail(*state, {sealed, 0, kBlockTokens, ~engine::RowMask{0}}, tail, scratch);

  std::vector<float> outputs(static_cast<std::size_t>(kRows * kDim));
  engine::QueryGroup group;
  group.sealed = state.get();
  group.sealed_tokens = sealed;
  group.tail = {&tail, kBlockTokens, ~engine::RowMask{0}};
  group.queries = data.queries.data();
  group.count = kRows;
  engine::AnswerView answer;
  answer.outputs = outputs.data();
  const std::unique_ptr<engine::AttendPlan> plan = linear.NewPlan();
  const auto attend = [&](std::int64_t count) {
    group.count = count;
    plan->Reset(group, answer);
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      while (!plan->Run(chain, scratch)) {
      }
    }
    plan->Finish(scratch);
  };
  const double whole = MedianSeconds(options, [&] { attend(kRows); });
  const double one = MedianSeconds(options, [&] {
    for (int i = 0; i < 100; ++i) attend(1);
  });

  // phi(Q) [S | Z], phi(Q) phi(K)^T and A [V | 1], as the plan tiles them.
  const std::vector<float> state_columns = Numbers(kDim * kColumns, 4);
  std::vector<float> sums(static_cast<std::size_t>(engine::kGemmMaxRows * kColumns));
  std::vector<float> scores(static_cast<std::size_t>(engine::kGemmMaxRows * kBlockTokens));
  const double products = MedianSeconds(options, [&] {
    for (std::int64_t row = 0; row < kRows; row += engine::kGemmMaxRows) {
      const std::int64_t m = engine::GemmPaddedRows(std::min(engine::kGemmMaxRows, kRows - row));
      const float* queries = data.queries.data() + row * kDim;
      engine::GemmNN(m, kColumns, kDim, queries, kDim, state_columns.data(), kColumns, false,
                     sums.data(), kColumns);
      engine::GemmNN(m, kBlockTokens, kDim, queries, kDim, data.keys.data(), kBlockTokens, false,
                     scores.data(), kBlockTokens);
      engine::GemmNN(m, kColumns, kBlockTokens, scores.data(), kBlockTokens, state_columns.data(),
                     kColumns, true, sums.data(), kColumns);
    }
  });
  const double map = MapSeconds(options, data.queries);
  std::printf(
      "linear attend of %lld queries: %.1f us; sgemm %.1f + exp %.1f us; one query %.2f us\n",
      static_cast<long long>(kRows), whole * 1e6, products * 1e6, map * 1e6, one * 1e4);
  return {"linear_attend", whole / (products + map), kTarget, true};
}

}  // namespace

std::vector<Bar> LinearBars(const BenchOptions& options) {
  const engine::LayerShape shape = {1, 1, kDim, kDim, 0.125F};
  const auto linear = engine::MakeLinearEngine(shape, {});
  if (!linear.ok()) std::abort();
  const Data data;
  return {AppendBar(options, **linear, data), AttendBar(options, **linear, data)};
}

}  // namespace attnd::bench
