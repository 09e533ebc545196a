// Drives a kde engine as a layer would; see exact_harness.h, whose tokens and snapshots it shares.
#ifndef ATTND_TESTS_ENGINE_KDE_HARNESS_H_
#define ATTND_TESTS_ENGINE_KDE_HARNESS_H_

<<<<<<< HEAD
=======
#include <malloc.h>

#include <algorithm>
#include <cmath>
>>>>>>> paper
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_config.h"
#include "tests/engine/exact_harness.h"

namespace attnd::engine::kde_test {

using exact_test::Snapshot;
using exact_test::Tokens;

std::unique_ptr<const Engine> MakeKde(const LayerShape& shape,
                                      KdeConfig::Mode mode = KdeConfig::Mode::kIndex);

// Tokens about `clusters` centres; values follow keys in part.
Tokens ClusteredTokens(const LayerShape& shape, std::int64_t count, std::int64_t clusters,
                       std::uint32_t seed);

// Every `step`-th key as a query of each head of its group, times `factor`.
std::vector<float> KeysAsQueries(const Tokens& tokens, std::int64_t step, float factor = 1.0F);

struct Asked {
  bool causal = false;
  std::int64_t first_cut = 0;
  std::int64_t top_k = 0;
  std::vector<std::int64_t> positions;  // empty: none
  Accuracy accuracy;
};

struct Answers {
  exact_test::Answers exact;  // what the exact engine answers too
  std::vector<float> errors;
  std::vector<float> bounds;
  std::vector<float> masses;
  std::vector<std::int64_t> keys;
  std::vector<std::uint8_t> paths;

  Answers Slice(std::int64_t first, std::int64_t count, std::int64_t queries) const;
  bool operator==(const Answers& other) const;  // as bits
};

Answers Ask(const Engine& engine, const Snapshot& snapshot, const float* queries,
            std::int64_t count, const Asked& asked = {});

// Per row: L2 of the error of outputs relative to the spread of the values.
std::vector<double> UnitErrors(const Tokens& tokens, const std::vector<float>& queries,
                               const Answers& answers);

<<<<<<< HEAD
// The smallest value that the share of values does not exceed.
double Quantile(std::vector<double> values, double share);
=======
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
>>>>>>> paper

}  // namespace attnd::engine::kde_test

#endif  // ATTND_TESTS_ENGINE_KDE_HARNESS_H_
