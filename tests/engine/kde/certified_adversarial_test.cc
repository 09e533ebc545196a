// Contexts that samples, codes or clusters are known to fail on. What must hold on each: an answer
// within its bar (or, where there is none, exact), a log-normalizer within its interval.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/certified_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::certified_test {
namespace {

struct Outcome {
  double coverage = 0.0;           // share of rows within their bars
  double interval_coverage = 0.0;  // share of log-normalizers within their intervals
  double max_error = 0.0;          // in units of the spread
  double mean_bar = 0.0;
  double mean_exact_mass = 0.0;
};

// 40 queries, 5 seeds each.
Outcome Measure(const Tokens& tokens, const std::vector<float>& queries,
                const CertifiedOptions& options, Controls controls) {
  const CodedContext context(tokens, controls);
  const oracle::Answers truth = Truth(tokens, queries);
  Outcome outcome;
  double rows = 0;
  // What the exact parts' f32 arithmetic is off.
  const double rounding = 2e-5;
  const double unit = std::max(context.spread, 1e-30);
  for (std::int64_t q = 0; q * tokens.key_dim < std::ssize(queries); ++q) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const Answer answer =
          Attend(context, options, queries.data() + q * tokens.key_dim, 100 * seed + Size(q));
      EXPECT_EQ(answer.estimates.flag, RowFlag::kOk);
      const double error = ErrorOfRow(answer, truth, q);
      const CertifiedAnswer& e = answer.estimates;
      const double log_truth = truth.log_normalizers[Size(q)];
      const double slack = rounding * std::max(1.0, std::abs(log_truth));
      rows += 1;
      outcome.coverage += error <= e.error + rounding * unit ? 1 : 0;
      outcome.interval_coverage +=
          log_truth >= e.log_normalizers.low - slack && log_truth <= e.log_normalizers.high + slack
              ? 1
              : 0;
      outcome.max_error = std::max(outcome.max_error, error / unit);
      outcome.mean_bar += e.error / unit;
      outcome.mean_exact_mass += e.exact_mass;
    }
  }
  outcome.coverage /= rows;
  outcome.interval_coverage /= rows;
  outcome.mean_bar /= rows;
  outcome.mean_exact_mass /= rows;
  return outcome;
}

constexpr CertifiedOptions kOptions = {
    .heavy_keys = 32, .most_heavy_keys = 128, .heavy_margin = 2.0F, .pairs = 32};

void ExpectHonest(const Tokens& tokens, const std::vector<float>& queries,
                  const std::string& what) {
  for (const Controls controls : {Controls::kNone, Controls::kMeans, Controls::kCodes}) {
    SCOPED_TRACE(what + ", controls " + std::to_string(static_cast<int>(controls)));
    const Outcome outcome = Measure(tokens, queries, kOptions, controls);
    EXPECT_GE(outcome.coverage, 0.95);
    EXPECT_GE(outcome.interval_coverage, 0.95);
  }
}

TEST(KdeCertifiedAdversarialTest, OneNeedle) {
  Tokens tokens = RandomTokens(4000, 64, 16, 1, 0.3F);
  const std::vector<float> queries = RandomValues(std::int64_t{40} * 64, 3);
  // Of the size of the first query, so that it holds half of that one's weight and more.
  std::copy_n(queries.begin(), 64, tokens.keys.begin() + std::int64_t{3333} * 64);
  for (std::int64_t i = 0; i < 64; ++i) tokens.keys[Size(std::int64_t{3333} * 64 + i)] *= 0.15F;
  ExpectHonest(tokens, queries, "needle");
  for (std::int64_t c = 0; c < 16; ++c) tokens.values[Size(std::int64_t{3333} * 16 + c)] *= 20;
  ExpectHonest(tokens, queries, "needle with a large value");
}

TEST(KdeCertifiedAdversarialTest, IdenticalKeys) {
  Tokens tokens = RandomTokens(2000, 16, 8, 4);
  for (std::int64_t i = 16; i < std::ssize(tokens.keys); ++i) {
    tokens.keys[Size(i)] = tokens.keys[Size(i % 16)];
  }
  ExpectHonest(tokens, RandomValues(std::int64_t{40} * 16, 5), "identical keys");
}

TEST(KdeCertifiedAdversarialTest, ZeroKeys) {
  Tokens tokens = RandomTokens(2000, 16, 8, 6);
  std::fill(tokens.keys.begin(), tokens.keys.end(), 0.0F);
  ExpectHonest(tokens, RandomValues(std::int64_t{40} * 16, 7), "zero keys");
}

TEST(KdeCertifiedAdversarialTest, ZeroQueries) {
  const Tokens tokens = RandomTokens(2000, 16, 8, 8);
  ExpectHonest(tokens, std::vector<float>(Size(std::int64_t{40} * 16), 0.0F), "zero queries");
}

// Logits of hundreds and thousands: codes are no use, and the answer is exact.
TEST(KdeCertifiedAdversarialTest, HugeLogits) {
  const Tokens tokens = RandomTokens(2000, 32, 8, 9, 10.0F);
  for (const float size : {3.0F, 30.0F, 300.0F}) {
    ExpectHonest(tokens, RandomValues(std::int64_t{40} * 32, 10, size), "huge logits");
  }
  const Outcome outcome =
      Measure(tokens, RandomValues(std::int64_t{40} * 32, 10, 300.0F), kOptions, Controls::kCodes);
  EXPECT_EQ(outcome.mean_exact_mass, 1.0);
}

TEST(KdeCertifiedAdversarialTest, OneGiantKey) {
  Tokens tokens = RandomTokens(2000, 32, 8, 11, 0.5F);
  for (std::int64_t i = 0; i < 32; ++i) tokens.keys[Size(std::int64_t{777} * 32 + i)] *= 1e4F;
  ExpectHonest(tokens, RandomValues(std::int64_t{40} * 32, 12, 0.5F), "giant key");
}

// A value so large that it makes up most of the spread, at a key that nothing tells from others.
TEST(KdeCertifiedAdversarialTest, OneGiantValue) {
  Tokens tokens = RandomTokens(2000, 32, 8, 13, 0.5F);
  for (std::int64_t c = 0; c < 8; ++c) tokens.values[Size(std::int64_t{777} * 8 + c)] *= 1e3F;
  const std::vector<float> queries = RandomValues(std::int64_t{40} * 32, 14, 0.5F);
  const Outcome codes = Measure(tokens, queries, kOptions, Controls::kCodes);
  EXPECT_GE(codes.coverage, 0.95);
  EXPECT_GE(codes.interval_coverage, 0.95);
}

TEST(KdeCertifiedAdversarialTest, TwoTightBalls) {
  Tokens tokens = RandomTokens(3000, 24, 8, 15, 0.01F);
  for (std::int64_t token = 0; token < 3000; ++token) {
    for (std::int64_t i = 0; i < 24; ++i) {
      tokens.keys[Size(token * 24 + i)] += token % 2 == 0 ? 1.0F : -1.0F;
    }
    for (std::int64_t c = 0; c < 8; ++c) {
      tokens.values[Size(token * 8 + c)] += token % 2 == 0 ? 3.0F : -3.0F;
    }
  }
  ExpectHonest(tokens, RandomValues(std::int64_t{40} * 24, 16, 0.5F), "two balls");
}

TEST(KdeCertifiedAdversarialTest, OneComponent) {
  Tokens tokens = RandomTokens(2000, 1, 1, 17);
  ExpectHonest(tokens, RandomValues(40, 18, 3.0F), "d = 1");
}

TEST(KdeCertifiedAdversarialTest, FewerKeysThanABlock) {
  for (const std::int64_t count : {1, 2, 63}) {
    const Tokens tokens = RandomTokens(count, 16, 8, 19);
    const std::vector<float> queries = RandomValues(std::int64_t{40} * 16, 20);
    ExpectHonest(tokens, queries, "few keys");
    // All of them are heavy.
    const Outcome outcome = Measure(tokens, queries, {.heavy_keys = 64}, Controls::kCodes);
    EXPECT_EQ(outcome.mean_exact_mass, 1.0);
    EXPECT_EQ(outcome.mean_bar, 0.0);
    EXPECT_LT(outcome.max_error, 1e-4);
  }
}

TEST(KdeCertifiedAdversarialTest, MostTokensMasked) {
  Tokens tokens = RandomTokens(3000, 16, 8, 21);
  for (std::int64_t token = 0; token < 3000; ++token) {
    if (token % 7 != 3 || token < 640) tokens.mask[Size(token)] = 0;
  }
  ExpectHonest(tokens, RandomValues(std::int64_t{40} * 16, 22), "masked");
}

TEST(KdeCertifiedAdversarialTest, NothingToSee) {
  Tokens tokens = RandomTokens(200, 16, 8, 23);
  std::fill(tokens.mask.begin(), tokens.mask.end(), std::uint8_t{0});
  const std::vector<float> query = RandomValues(16, 24);
  const CodedContext masked(tokens);
  tokens.count = 0;
  const CodedContext none(tokens);
  for (const CodedContext* context : {&masked, &none}) {
    const Answer answer = Attend(*context, kOptions, query.data(), 1);
    EXPECT_EQ(answer.estimates.flag, RowFlag::kEmpty);
    EXPECT_EQ(answer.output, std::vector<float>(8, 0.0F));
    EXPECT_EQ(answer.estimates.log_normalizer, -std::numeric_limits<double>::infinity());
    EXPECT_EQ(answer.estimates.moments.total(), 0.0);
  }
}

TEST(KdeCertifiedAdversarialTest, ScoresThatLeaveF32) {
  Tokens tokens = RandomTokens(300, 4, 8, 25);
  for (std::int64_t i = 0; i < 4; ++i) tokens.keys[Size(std::int64_t{70} * 4 + i)] = 3e38F;
  const CodedContext context(tokens);
  const std::vector<float> query(4, 10.0F);
  const Answer answer = Attend(context, kOptions, query.data(), 1);
  EXPECT_EQ(answer.estimates.flag, RowFlag::kOverflow);
  EXPECT_EQ(answer.output, std::vector<float>(8, 0.0F));
  EXPECT_TRUE(std::isnan(answer.estimates.log_normalizer));
}

}  // namespace
}  // namespace attnd::engine::certified_test
