// Coverage and size of the bars on real tensors: over 20 draws of the sample, the share of rows
// whose error is within the bar.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/certified_harness.h"

namespace attnd::engine::certified_test {
namespace {

constexpr std::uint64_t kDraws = 20;

struct Bars {
  double mean_coverage = 0.0;
  double coverage_5 = 0.0;  // 5th percentile over draws
  double median_bar = 0.0;  // in units of the spread
  double error_95 = 0.0;
  double interval_coverage = 0.0;
  double median_interval = 0.0;
};

Bars Measure(const Tokens& tokens, const std::vector<float>& queries, Controls controls,
             const CertifiedOptions& options) {
  const CodedContext context(tokens, controls);
  const oracle::Answers truth = Truth(tokens, queries);
  const std::int64_t count = std::ssize(queries) / tokens.key_dim;
  std::vector<double> coverages;
  std::vector<double> bars;
  std::vector<double> errors;
  std::vector<double> widths;
  double inside = 0;
  for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
    double covered = 0;
    for (std::int64_t q = 0; q < count; ++q) {
      const Answer answer = Attend(context, options, queries.data() + q * tokens.key_dim,
                                   draw * 100000 + static_cast<std::uint64_t>(q));
      const double error = ErrorOfRow(answer, truth, q);
      // f32 arithmetic of what is exact.
      covered += error <= answer.estimates.error + 1e-5 * context.spread ? 1 : 0;
      bars.push_back(answer.estimates.error / context.spread);
      errors.push_back(error / context.spread);
      const LogInterval interval = answer.estimates.log_normalizers;
      const double log_truth = truth.log_normalizers[Size(q)];
      inside += log_truth >= interval.low - 1e-5 && log_truth <= interval.high + 1e-5 ? 1 : 0;
      widths.push_back(interval.high - interval.low);
    }
    coverages.push_back(covered / static_cast<double>(count));
  }
  Bars result;
  for (const double coverage : coverages) result.mean_coverage += coverage / kDraws;
  result.coverage_5 = Percentile(coverages, 0.05);
  result.median_bar = Percentile(bars, 0.5);
  result.error_95 = Percentile(errors, 0.95);
  result.interval_coverage = inside / static_cast<double>(bars.size());
  result.median_interval = Percentile(widths, 0.5);
  return result;
}

void ExpectHonest(const Bars& bars) {
  EXPECT_GE(bars.mean_coverage, 0.95);
  EXPECT_GE(bars.coverage_5, 0.90);
  EXPECT_GE(bars.interval_coverage, 0.95);
  // Also of use.
  EXPECT_LE(bars.median_bar, 4 * bars.error_95 + 1e-5);
}

Tokens TokensOf(const data::TensorSet& set, const data::Layer& layer, std::int64_t head) {
  Tokens tokens{.count = set.tokens,
                .key_dim = set.shape.key_dim,
                .value_dim = set.shape.value_dim,
                .mask = std::vector<std::uint8_t>(Size(set.tokens), 1)};
  for (std::int64_t token = 0; token < set.tokens; ++token) {
    const auto key = layer.keys.begin() + token * set.shape.key_row() + head * set.shape.key_dim;
    const auto value =
        layer.values.begin() + token * set.shape.value_row() + head * set.shape.value_dim;
    tokens.keys.insert(tokens.keys.end(), key, key + set.shape.key_dim);
    tokens.values.insert(tokens.values.end(), value, value + set.shape.value_dim);
  }
  return tokens;
}

// `count` query rows of a query head, spread over the tokens, scaled.
std::vector<float> QueriesOf(const data::TensorSet& set, const data::Layer& layer,
                             std::int64_t query_head, std::int64_t count) {
  std::vector<float> queries;
  for (std::int64_t q = 0; q < count; ++q) {
    const auto row = layer.queries.begin() + q * set.tokens / count * set.shape.query_row() +
                     query_head * set.shape.key_dim;
    for (std::int64_t i = 0; i < set.shape.key_dim; ++i) {
      queries.push_back(row[i] * set.shape.scale);
    }
  }
  return queries;
}

class KdeCertifiedWordFigures : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Sets, KdeCertifiedWordFigures,
                         ::testing::Values("queries_are_keys", "queries_are_not_keys",
                                           "values_are_keys"),
                         [](const auto& set) { return set.param; });

TEST_P(KdeCertifiedWordFigures, BarsAreHonest) {
  const data::TensorSet set = data::WordVectors();
  Tokens tokens = TokensOf(set, set.layers[0], 0);
  std::vector<float> queries = QueriesOf(set, set.layers[0], 0, 512);
  if (GetParam() == "queries_are_not_keys") {
    // Even rows are keys, odd ones queries.
    Tokens even = tokens;
    even.keys.clear();
    queries.clear();
    for (std::int64_t token = 0; token < tokens.count; ++token) {
      const auto key = tokens.keys.begin() + token * tokens.key_dim;
      if (token % 2 == 0) even.keys.insert(even.keys.end(), key, key + tokens.key_dim);
      if (token % 8 == 1) queries.insert(queries.end(), key, key + tokens.key_dim);
    }
    even.count /= 2;
    tokens = even;
  }
  if (GetParam() == "values_are_keys") tokens.values = tokens.keys;
  const Bars codes = Measure(tokens, queries, Controls::kCodes, {});
  ExpectHonest(codes);
  EXPECT_LT(codes.error_95, 0.001);
  EXPECT_LT(codes.median_interval, 0.06);
  if (GetParam() == "values_are_keys") return;
  const Bars means = Measure(tokens, queries, Controls::kMeans, {});
  ExpectHonest(means);
  EXPECT_LT(means.error_95, 0.1);
}

TEST(KdeCertifiedRecogniserFigures, BarsAreHonest) {
  const data::TensorSet set = data::TextRecogniserHeads();
  for (std::int64_t head = 0; head < set.shape.kv_heads; ++head) {
    SCOPED_TRACE(head);
    const Tokens tokens = TokensOf(set, set.layers[0], head);
    const std::vector<float> queries = QueriesOf(set, set.layers[0], head, 512);
    ExpectHonest(Measure(tokens, queries, head % 2 == 0 ? Controls::kCodes : Controls::kMeans, {}));
  }
}

class KdeCertifiedHeadFigures : public ::testing::TestWithParam<data::SharedHeads> {};

TEST_P(KdeCertifiedHeadFigures, BarsAreHonest) {
  const std::optional<data::TensorSet> set = data::ReadShared(GetParam());
  if (!set.has_value())
    GTEST_SKIP() << "../shared/data/" << GetParam().name << "_k.npy is not there";
  // Of the first and the last layer, one head each: the others take minutes and say the same.
  for (const data::Layer* layer : {&set->layers.front(), &set->layers.back()}) {
    const Tokens tokens = TokensOf(*set, *layer, 0);
    const std::vector<float> queries =
        QueriesOf(*set, *layer, 0, std::min<std::int64_t>(512, set->tokens));
    ExpectHonest(Measure(tokens, queries, Controls::kCodes, {}));
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, KdeCertifiedHeadFigures, ::testing::ValuesIn(data::kSharedHeads),
                         [](const auto& set) { return std::string(set.param.name); });

}  // namespace
}  // namespace attnd::engine::certified_test
