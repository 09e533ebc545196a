// Data sets for the tests of engine/kde, and statistics that say whether an estimate is unbiased.
#ifndef ATTND_TESTS_ENGINE_KDE_PAPER_HARNESS_H_
#define ATTND_TESTS_ENGINE_KDE_PAPER_HARNESS_H_

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/kde/paper/column_sampling.h"
#include "engine/kde/paper/density.h"
#include "engine/kde/rows.h"
#include "engine/scratch.h"
#include "gtest/gtest.h"
#include "tests/engine/random_values.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::engine::kde_test {

// Rows that own their numbers.
struct OwnedRows {
  std::int64_t count = 0;
  std::int64_t dim = 0;
  std::vector<float> numbers;

  Rows rows() const { return DenseRows(numbers.data(), count, dim); }
};

inline OwnedRows RandomRows(std::int64_t count, std::int64_t dim, std::uint32_t seed,
                            float deviation) {
  return {count, dim, RandomValues(count * dim, seed, deviation)};
}

// Keys, queries and values of one head that own their numbers.
struct Head {
  OwnedRows queries;
  OwnedRows keys;
  OwnedRows values;
  float scale = 1;

  AttentionInputs inputs() const { return {queries.rows(), keys.rows(), values.rows(), scale}; }
};

inline Head RandomHead(std::int64_t queries, std::int64_t keys, std::uint32_t seed) {
  return {RandomRows(queries, 12, seed, 1.0F), RandomRows(keys, 12, seed + 1, 1.0F),
          RandomRows(keys, 20, seed + 2, 1.0F), 0.5F};
}

struct NamedRows {
  std::string name;
  OwnedRows rows;
};

// Data sets that break what is written for ordinary ones. Products of two rows stay below 10^5.
inline std::vector<NamedRows> AdversarialRows() {
  std::vector<NamedRows> sets;
  sets.push_back({"one row", RandomRows(1, 8, 1, 1.0F)});
  sets.push_back({"one number", RandomRows(300, 1, 2, 1.0F)});
  sets.push_back({"zeros", {200, 5, std::vector<float>(1000, 0.0F)}});
  OwnedRows identical = {200, 3, {}};
  for (int i = 0; i < 200; ++i) {
    for (const float x : {0.5F, -1.0F, 2.0F}) identical.numbers.push_back(x);
  }
  sets.push_back({"identical", identical});
  sets.push_back({"huge norms", RandomRows(150, 6, 3, 60.0F)});
  constexpr std::size_t kOutlier = 77;
  OwnedRows outlier = RandomRows(200, 4, 4, 0.5F);
  for (std::size_t c = 0; c < 4; ++c) outlier.numbers[kOutlier * 4 + c] = 100.0F;
  sets.push_back({"one outlier", outlier});
  OwnedRows balls = RandomRows(200, 4, 5, 0.01F);
  for (std::size_t i = 0; i < 200; ++i) balls.numbers[4 * i] += i % 2 == 0 ? 6.0F : -6.0F;
  sets.push_back({"two tight balls", balls});
  return sets;
}

// Mean and standard error of independent numbers.
struct Moments {
  double mean = 0;
  double error = 0;
};

inline Moments MomentsOf(const std::vector<double>& numbers) {
  Moments moments;
  const auto n = static_cast<double>(numbers.size());
  for (const double x : numbers) moments.mean += x / n;
  for (const double x : numbers) {
    moments.error += (x - moments.mean) * (x - moments.mean) / (n * (n - 1));
  }
  moments.error = std::sqrt(moments.error);
  return moments;
}

// What a Method (Kdeformer, ColumnSampling) answered, and the method with what it has chosen.
template <typename Method>
struct Attended {
  std::unique_ptr<Method> method;
  std::vector<float> outputs;
  std::vector<float> log_normalizers;
};

template <typename Method, typename Config>
Attended<Method> AttendBy(const Head& head, const Config& config) {
  Attended<Method> run;
  run.outputs.assign(static_cast<std::size_t>(head.queries.count * head.values.dim), NAN);
  run.log_normalizers.assign(static_cast<std::size_t>(head.queries.count), NAN);
  auto made = Method::Create(head.inputs(), config,
                             {{run.outputs.data(), head.values.dim}, run.log_normalizers.data()});
  EXPECT_TRUE(made.ok()) << made.status();
  run.method = *std::move(made);
  Scratch scratch;
  while (!run.method->Step(scratch)) {
  }
  return run;
}

// Softmax attention of all queries over all keys by the f64 oracle.
inline oracle::Answers Softmax(const AttentionInputs& inputs) {
  oracle::Context context;
  context.key_dim = inputs.keys.dim;
  context.value_dim = inputs.values.dim;
  context.scale = static_cast<double>(inputs.scale);
  context.tokens = inputs.keys.count;
  context.keys = inputs.keys.data;
  context.values = inputs.values.data;
  return oracle::Softmax(
      context, {inputs.queries.data, oracle::AllVisible(inputs.queries.count, inputs.keys.count)});
}

// What the program has from the allocator. Counted in ordinary builds only.
inline std::int64_t BytesInUse() {
  const auto info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

// Runs all steps and returns by how much the program's memory has grown meanwhile, at the most.
template <typename Plan>
std::int64_t PeakBytes(Plan& plan, Scratch& scratch, std::int64_t before) {
  std::int64_t peak = BytesInUse();
  bool done = false;
  while (!done) {
    done = plan.Step(scratch);
    peak = std::max(peak, BytesInUse());
  }
  return peak - before;
}

// ||answers - truth||_F / ||truth||_F.
inline double FrobeniusError(const std::vector<float>& answers, const std::vector<double>& truth) {
  double off = 0;
  double all = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double difference = static_cast<double>(answers[i]) - truth[i];
    off += difference * difference;
    all += truth[i] * truth[i];
  }
  return std::sqrt(off / all);
}

}  // namespace attnd::engine::kde_test

#endif  // ATTND_TESTS_ENGINE_KDE_PAPER_HARNESS_H_
