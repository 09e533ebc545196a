// Drives a kde engine as a layer would; see exact_harness.h, whose tokens and snapshots it shares.
#ifndef ATTND_TESTS_ENGINE_KDE_INDEX_HARNESS_H_
#define ATTND_TESTS_ENGINE_KDE_INDEX_HARNESS_H_

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

std::unique_ptr<const Engine> MakeKde(const LayerShape& shape, const KdeConfig& config);

// Tokens about `clusters` centres; values follow keys in part.
Tokens ClusteredTokens(const LayerShape& shape, std::int64_t count, std::int64_t clusters,
                       std::uint32_t seed);

// Every `step`-th key as a query of each head of its group, times `factor`.
std::vector<float> KeysAsQueries(const Tokens& tokens, std::int64_t step, float factor = 1.0F);

struct Asked {
  bool causal = false;
  std::int64_t first_cut = 0;
  std::int64_t top_k = 0;
  std::vector<std::int64_t> positions = {};  // empty: none
  Accuracy accuracy = {};
  std::int64_t layer = 0;
};

struct Answers {
  exact_test::Answers exact;  // what the exact engine answers too
  std::vector<float> errors;
  std::vector<float> bounds;
  std::vector<float> masses;
  std::vector<std::int64_t> keys;
  std::vector<std::uint8_t> paths;
  std::vector<std::uint8_t> calibrated;
  std::vector<float> audited;  // true errors; -1: of no audit

  Answers Slice(std::int64_t first, std::int64_t count, std::int64_t queries) const;
  bool operator==(const Answers& other) const;  // as bits
  // The same but for what audits may change.
  bool SameAnswers(const Answers& other) const;
};

Answers Ask(const Engine& engine, const Snapshot& snapshot, const float* queries,
            std::int64_t count, const Asked& asked = {});

// Per row: L2 of the error of outputs relative to the spread of the values.
std::vector<double> UnitErrors(const Tokens& tokens, const std::vector<float>& queries,
                               const Answers& answers);

// The smallest value that the share of values does not exceed.
double Quantile(std::vector<double> values, double share);

}  // namespace attnd::engine::kde_test

#endif  // ATTND_TESTS_ENGINE_KDE_INDEX_HARNESS_H_
