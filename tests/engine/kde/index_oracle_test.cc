// Index answers against the f64 oracle, and what they say of themselves.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/kde/index/head_build.h"
#include "engine/kde/index/head_index.h"
#include "engine/kde/index/index_state.h"
#include "engine/kde/index/ref_index.h"
#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::kde_test {
namespace {

Tokens FromSet(const data::TensorSet& set, std::size_t layer) {
  return {.shape = set.shape,
          .count = set.tokens,
          .keys = set.layers[layer].keys,
          .values = set.layers[layer].values,
          .mask = std::vector<std::uint8_t>(Size(set.tokens), 1)};
}

// Every 16th token's own query.
struct OwnQueries {
  std::vector<float> rows;
  std::vector<std::int64_t> positions;
};

OwnQueries QueriesOf(const data::TensorSet& set, std::size_t layer) {
  OwnQueries own;
  const std::int64_t row = set.shape.query_row();
  for (std::int64_t t = 0; t < set.tokens; t += 16) {
    const auto first = set.layers[layer].queries.begin() + t * row;
    own.rows.insert(own.rows.end(), first, first + row);
    own.positions.push_back(t);
  }
  return own;
}

double Mean(const std::vector<std::int64_t>& values) {
  double sum = 0.0;
  for (const std::int64_t value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(values.size());
}

double Share(const std::vector<double>& errors, const std::vector<float>& stated) {
  double within = 0.0;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    within += errors[i] <= static_cast<double>(stated[i]) + 1e-5 ? 1.0 : 0.0;
  }
  return within / static_cast<double>(errors.size());
}

TEST(KdeOracleTest, WordVectorsWithinTheStatedErrorAtAFractionOfTheKeys) {
  const data::TensorSet set = data::WordVectors();
  const Tokens tokens = FromSet(set, 0);
  const auto engine = MakeKde(set.shape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
  const OwnQueries own = QueriesOf(set, 0);
  const auto count = static_cast<std::int64_t>(own.positions.size());
  Asked asked;
  asked.positions = own.positions;
  double last_error = 1.0;
  double last_keys = 0.0;
  for (const double target : {0.05, 0.01, 0.003}) {
    asked.accuracy.target_error = target;
    const Answers answers = Ask(*engine, snapshot, own.rows.data(), count, asked);
    const std::vector<double> errors = UnitErrors(tokens, own.rows, answers);
    const double p95 = Quantile(errors, 0.95);
    EXPECT_LE(p95, target);
    EXPECT_LT(p95, last_error);
    EXPECT_GT(Share(errors, answers.errors), 0.8) << target;
    EXPECT_GT(Mean(answers.keys), last_keys);
    last_error = p95;
    last_keys = Mean(answers.keys);
  }
  asked.accuracy.target_error = 0.05;
  const Answers answers = Ask(*engine, snapshot, own.rows.data(), count, asked);
  EXPECT_LT(Mean(answers.keys), 0.75 * static_cast<double>(tokens.count));
}

TEST(KdeOracleTest, ClustersThatAreThereNeedFewKeys) {
  const LayerShape shape = {1, 2, 16, 16, 0.5F};
  const Tokens tokens = ClusteredTokens(shape, 8192, 90, 91);
  const auto engine = MakeKde(shape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
  const std::vector<float> queries = KeysAsQueries(tokens, 97);
  const std::int64_t count = static_cast<std::int64_t>(queries.size()) / shape.query_row();
  Asked asked;
  for (std::int64_t i = 0; i < count; ++i) asked.positions.push_back(97 * i);
  const Answers answers = Ask(*engine, snapshot, queries.data(), count, asked);
  const std::vector<double> errors = UnitErrors(tokens, queries, answers);
  EXPECT_LT(Quantile(errors, 0.95), 0.03);
  EXPECT_GT(Share(errors, answers.errors), 0.85);
  EXPECT_LT(Mean(answers.keys), 0.45 * static_cast<double>(tokens.count));
}

// Jensen from below, radii from above; what was read exactly is a share.
TEST(KdeOracleTest, BoundsHoldTheLogNormalizer) {
  const data::TensorSet set = data::WordVectors();
  const Tokens tokens = FromSet(set, 0);
  const auto engine = MakeKde(set.shape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
  const OwnQueries own = QueriesOf(set, 0);
  const auto count = static_cast<std::int64_t>(own.positions.size());
  const Answers answers = Ask(*engine, snapshot, own.rows.data(), count, {});
  const oracle::Answers truth =
      oracle::Softmax(tokens.context(), {own.rows.data(), oracle::AllVisible(count, tokens.count)});
  std::int64_t estimated = 0;
  for (std::size_t row = 0; row < truth.log_normalizers.size(); ++row) {
    EXPECT_LE(static_cast<double>(answers.bounds[2 * row]), truth.log_normalizers[row] + 1e-4);
    EXPECT_GE(static_cast<double>(answers.bounds[2 * row + 1]), truth.log_normalizers[row] - 1e-4);
    EXPECT_GE(answers.masses[row], 0.0F);
    EXPECT_LE(answers.masses[row], 1.0F);
    if (answers.paths[row] == 0) {
      EXPECT_EQ(answers.masses[row], 1.0F);
    }
    estimated += answers.paths[row];
  }
  EXPECT_GT(estimated, count / 2);
}

TEST(KdeOracleTest, RowsThatReadEverythingAreExact) {
  const data::TensorSet set = data::WordVectors();
  const Tokens tokens = FromSet(set, 0);
  const OwnQueries own = QueriesOf(set, 0);
  const auto count = static_cast<std::int64_t>(own.positions.size());
  // AUTO does so below 4,096 sealed tokens.
  const auto engine = MakeKde(set.shape, KdeConfig::Mode::kAuto);
  const Answers answers = Ask(*engine, exact_test::At(*engine, tokens, tokens.count),
                              own.rows.data(), count, {.top_k = 3});
  const auto exact = exact_test::MakeExact(set.shape);
  const exact_test::Answers expected = exact_test::Attend(
      *exact, exact_test::At(*exact, tokens, tokens.count), own.rows.data(), count, {.top_k = 3});
  for (const std::uint8_t path : answers.paths) EXPECT_EQ(path, 0);
  for (const float error : answers.errors) EXPECT_EQ(error, 0.0F);
  EXPECT_EQ(answers.exact.top_positions, expected.top_positions);
  const std::vector<double> outputs(expected.outputs.begin(), expected.outputs.end());
  EXPECT_LT(oracle::RelativeError(answers.exact.outputs, outputs), 3e-6);
}

// What no threshold can promise AUTO answers exactly, INDEX as well as it can.
TEST(KdeOracleTest, RowsThatWouldReadMuchAreExactInAuto) {
  const LayerShape shape = {1, 2, 16, 16, 0.5F};
  const Tokens tokens = ClusteredTokens(shape, 16384, 180, 94);
  const std::vector<float> queries = KeysAsQueries(tokens, 202);
  const std::int64_t count = static_cast<std::int64_t>(queries.size()) / shape.query_row();
  Asked tight;
  tight.accuracy.target_error = 1e-9;
  const auto index = MakeKde(shape, KdeConfig::Mode::kIndex);
  const auto automatic = MakeKde(shape, KdeConfig::Mode::kAuto);
  const Snapshot of_index = exact_test::At(*index, tokens, tokens.count);
  const Snapshot of_automatic = exact_test::At(*automatic, tokens, tokens.count);
  const Answers loose = Ask(*automatic, of_automatic, queries.data(), count);
  EXPECT_GT(std::count(loose.paths.begin(), loose.paths.end(), 1), count);
  const Answers exact = Ask(*automatic, of_automatic, queries.data(), count, tight);
  const std::vector<double> errors = UnitErrors(tokens, queries, exact);
  std::int64_t partly = 0;
  for (std::size_t row = 0; row < errors.size(); ++row) {
    if (exact.paths[row] == 0) {
      EXPECT_LT(errors[row], 1e-5) << row;
      continue;
    }
    ++partly;
    // Beside 30 % of both spans: raw blocks, and summaries of 251 leaves and 17 branches.
    EXPECT_LE(exact.keys[row], 3 * (15808 + 256) / 10 + 320 + 251 + 17) << row;
  }
  EXPECT_LT(partly, count / 2);
  const Answers best = Ask(*index, of_index, queries.data(), count, tight);
  EXPECT_GT(std::count(best.paths.begin(), best.paths.end(), 1), 0);
  EXPECT_LT(Quantile(UnitErrors(tokens, queries, best), 0.95), 5e-3);
}

TEST(KdeOracleTest, BudgetsOfKeysAreKeptOnAverage) {
  const LayerShape shape = {1, 1, 16, 16, 0.5F};
  const Tokens tokens = ClusteredTokens(shape, 9000, 90, 93);
  const auto engine = MakeKde(shape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
  const std::vector<float> queries = KeysAsQueries(tokens, 101);
  const std::int64_t count = static_cast<std::int64_t>(queries.size()) / shape.query_row();
  const auto& state = static_cast<const IndexState&>(*snapshot.sealed);
  std::int64_t summaries = 0;
  std::int64_t newest = 64 * static_cast<std::int64_t>(state.raw_blocks().size()) + snapshot.rows;
  for (const auto& span : state.spans()) {
    summaries += span->heads.front()->leaves();
    // What is read of spans that borrow their table is not what that table says.
    if (span->span.tokens <= HeadBuild::kMostBorrowingTokens) newest += span->span.tokens;
  }
  const auto always = static_cast<double>(summaries + newest);
  double last = 0.0;
  for (const std::int64_t budget : {1000, 2500, 5000}) {
    Asked asked;
    asked.accuracy.max_keys = budget;
    const double keys = Mean(Ask(*engine, snapshot, queries.data(), count, asked).keys) - always;
    EXPECT_LT(keys, 1.05 * static_cast<double>(budget));
    EXPECT_GT(keys, last);
    last = keys;
  }
}

// What the reference, stage by stage, makes of queries that are keys of the context. The engine has
// its bits with all stages on (kde_bits_test.cc), so that a stage that does nothing shows here.
class Ablation {
 public:
  struct Errors {
    double output = 0.0;  // root mean square
    double mass = 0.0;    // of log-normalizers, likewise
  };

  Ablation(Tokens tokens, std::int64_t step)
      : tokens_(std::move(tokens)),
        engine_(MakeKde(tokens_.shape)),
        snapshot_(exact_test::At(*engine_, tokens_, tokens_.count)),
        step_(step),
        queries_(KeysAsQueries(tokens_, step)),
        count_(static_cast<std::int64_t>(queries_.size()) / tokens_.shape.query_row()),
        truth_(oracle::Softmax(tokens_.context(),
                               {queries_.data(), oracle::AllVisible(count_, tokens_.count)})) {}

  Errors With(const RefIndexStages& stages, std::int64_t threshold) const {
    const LayerShape& shape = tokens_.shape;
    Errors errors;
    for (std::int64_t i = 0; i < count_; ++i) {
      std::vector<float> output(Size(shape.value_dim));
      const float log_normalizer =
          RefIndexRow(shape, static_cast<const IndexState&>(*snapshot_.sealed),
                      {snapshot_.tail.get(), snapshot_.rows, snapshot_.valid},
                      {.row = queries_.data() + i * shape.key_dim,
                       .position = step_ * i,
                       .threshold = threshold},
                      stages, output.data());
      const double off = static_cast<double>(log_normalizer) - truth_.log_normalizers[Size(i)];
      errors.mass += off * off / static_cast<double>(count_);
      for (std::int64_t c = 0; c < shape.value_dim; ++c) {
        const double difference =
            static_cast<double>(output[Size(c)]) - truth_.outputs[Size(i * shape.value_dim + c)];
        errors.output += difference * difference / static_cast<double>(count_);
      }
    }
    return {std::sqrt(errors.output), std::sqrt(errors.mass)};
  }

 private:
  const Tokens tokens_;
  const std::unique_ptr<const Engine> engine_;
  const Snapshot snapshot_;
  const std::int64_t step_;
  const std::vector<float> queries_;
  const std::int64_t count_;
  const oracle::Answers truth_;
};

TEST(KdeAblationTest, MassesAreBetterForTheMetricAndTheRatios) {
  const Ablation ablation(FromSet(data::WordVectors(), 0), 31);
  const double all = ablation.With({}, 4).mass;
  EXPECT_GT(ablation.With({.metric = false}, 4).mass, 1.2 * all);
  EXPECT_GT(ablation.With({.ratios = false}, 4).mass, 1.2 * all);
}

TEST(KdeAblationTest, OutputsAreBetterForSlopesSelectionAndTheOwnLeaf) {
  const LayerShape shape = {1, 1, 16, 16, 0.5F};
  const Ablation ablation(ClusteredTokens(shape, 7 * 1024 + 700, 90, 92), 61);
  const double all = ablation.With({}, 2).output;
  EXPECT_GT(ablation.With({.slopes = false}, 2).output, 1.2 * all);
  EXPECT_GT(ablation.With({.selection = false}, 2).output, 1.5 * all);
  EXPECT_GT(ablation.With({.selection = false, .own_leaf = false}, 0).output,
            1.2 * ablation.With({.selection = false}, 0).output);
}

}  // namespace
}  // namespace attnd::engine::kde_test
