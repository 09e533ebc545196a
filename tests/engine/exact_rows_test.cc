// Rows that see nothing, rows whose arithmetic overflows, and the top keys of a row.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::exact_test {
namespace {

constexpr auto kEmpty = static_cast<std::uint8_t>(RowFlag::kEmpty);
constexpr auto kOverflow = static_cast<std::uint8_t>(RowFlag::kOverflow);
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void ExpectZeros(const std::vector<float>& values) {
  for (const float value : values) {
    EXPECT_EQ(value, 0.0F);
    EXPECT_FALSE(std::signbit(value));
  }
}

TEST(ExactRowsTest, NoTokensAtAllIsEmpty) {
  const LayerShape shape = {2, 4, 5, 6, 1.0F};
  const auto engine = MakeExact(shape);
  const Tokens tokens = RandomTokens(shape, 1, 41);
  const std::vector<float> queries = RandomValues(60 * shape.query_row(), 42);
  for (const std::int64_t n : {1, 60}) {
    const Answers answers =
        Attend(*engine, At(*engine, tokens, 0), queries.data(), n, {.top_k = 2});
    ExpectZeros(answers.outputs);
    ExpectZeros(answers.top_weights);
    for (const std::uint8_t flag : answers.flags) EXPECT_EQ(flag, kEmpty);
    for (const float z : answers.log_normalizers) EXPECT_EQ(z, -kInfinity);
    for (const std::int64_t p : answers.top_positions) EXPECT_EQ(p, -1);
  }
}

TEST(ExactRowsTest, AllTokensMaskedIsEmptyAndNotTheMeanOfZeros) {
  const LayerShape shape = {1, 2, 5, 6, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 200, 43);
  for (std::int64_t t = 0; t < 200; ++t) tokens.Mask(t);
  const std::vector<float> queries = RandomValues(60 * shape.query_row(), 44);
  for (const std::int64_t n : {1, 60}) {
    const Answers answers = Attend(*engine, At(*engine, tokens, 200), queries.data(), n);
    ExpectZeros(answers.outputs);
    for (const std::uint8_t flag : answers.flags) EXPECT_EQ(flag, kEmpty);
    for (const float z : answers.log_normalizers) EXPECT_EQ(z, -kInfinity);
  }
}

// The first steps see masked tokens only, later ones see the tokens that follow.
TEST(ExactRowsTest, EmptyAndFullRowsOfOneTileDoNotMix) {
  const LayerShape shape = {1, 1, 8, 8, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 40, 45);
  for (std::int64_t t = 0; t < 10; ++t) tokens.Mask(t);
  const std::vector<float> queries = RandomValues(40 * shape.query_row(), 46);
  const Answers answers = Attend(*engine, At(*engine, tokens, 40), queries.data(), 40,
                                 {.causal = true, .first_cut = 1});
  const oracle::Answers expected =
      oracle::Softmax(tokens.context(), {queries.data(), oracle::CausallyVisible(40, 1)});
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(answers.flags[i], i < 10 ? kEmpty : 0) << i;
  EXPECT_LT(RelativeError(answers.outputs, expected.outputs), 1e-6);
}

TEST(ExactRowsTest, OutputsAreNeverNegativeZero) {
  const LayerShape shape = {1, 1, 4, 4, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 100, 47);
  // Equal weights; -2^-149 / 100 rounds to -0.
  std::fill(tokens.keys.begin(), tokens.keys.end(), 0.0F);
  std::fill(tokens.values.begin(), tokens.values.end(), -0.0F);
  std::fill_n(tokens.values.begin(), 4, -std::numeric_limits<float>::denorm_min());
  const std::vector<float> queries = RandomValues(20 * shape.query_row(), 48);
  ExpectZeros(Attend(*engine, At(*engine, tokens, 100), queries.data(), 1).outputs);
  ExpectZeros(Attend(*engine, At(*engine, tokens, 100), queries.data(), 20).outputs);
}

class ExactOverflow : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(ExactOverflow, OfARowDoesNotDisturbItsNeighbours) {
  const std::int64_t n = GetParam();
  const std::int64_t bad = n / 2;
  const LayerShape shape = {1, 1, 8, 8, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 150, 49);
  tokens.keys[static_cast<std::size_t>(70 * 8)] = 1e30F;
  std::vector<float> queries = RandomValues(n * shape.query_row(), 50);
  for (std::int64_t i = 0; i < n; ++i) queries[static_cast<std::size_t>(i * 8)] = 0.0F;
  const Snapshot snapshot = At(*engine, tokens, 150);
  const Answers clean = Attend(*engine, snapshot, queries.data(), n, {.top_k = 2});
  for (const float huge : {1e30F, -1e30F}) {
    queries[static_cast<std::size_t>(bad * 8)] = huge;
    const Answers answers = Attend(*engine, snapshot, queries.data(), n, {.top_k = 2});
    for (std::int64_t i = 0; i < n; ++i) {
      const Answers row = answers.Slice(i, 1, n);
      if (i != bad) {
        EXPECT_TRUE(row == clean.Slice(i, 1, n)) << i;
        continue;
      }
      ExpectZeros(row.outputs);
      ExpectZeros(row.top_weights);
      EXPECT_EQ(row.flags[0], kOverflow);
      EXPECT_TRUE(std::isnan(row.log_normalizers[0]));
      EXPECT_EQ(row.top_positions, (std::vector<std::int64_t>{-1, -1}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Queries, ExactOverflow, ::testing::Values(1, 3, 30, 200));

TEST(ExactRowsTest, AMaskedKeyCannotOverflowARow) {
  const LayerShape shape = {1, 1, 8, 8, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 100, 51);
  constexpr std::ptrdiff_t kMasked = 70;
  constexpr std::ptrdiff_t kRow = 8;
  std::fill(tokens.keys.begin(), tokens.keys.end(), 1e-30F);
  std::fill_n(tokens.keys.begin() + kMasked * kRow, kRow, 1e30F);  // stored although masked
  tokens.mask[kMasked] = 0;
  const std::vector<float> queries(static_cast<std::size_t>(20 * 8), 1e30F);
  for (const std::int64_t n : {1, 20}) {
    const Answers answers = Attend(*engine, At(*engine, tokens, 100), queries.data(), n);
    for (const std::uint8_t flag : answers.flags) EXPECT_EQ(flag, 0);
  }
}

TEST(ExactRowsTest, SumsOfHugeValuesThatOverflowAreFlagged) {
  const LayerShape shape = {1, 1, 2, 2, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 100, 52);
  std::fill(tokens.values.begin(), tokens.values.end(), 3e38F);
  const std::vector<float> queries(2, 0.0F);
  const Answers answers = Attend(*engine, At(*engine, tokens, 100), queries.data(), 1);
  EXPECT_EQ(answers.flags[0], kOverflow);
  ExpectZeros(answers.outputs);
}

// Positions of the k largest weights, as the contract orders them.
std::vector<std::int64_t> Largest(const std::vector<double>& weights, std::size_t k) {
  std::vector<std::int64_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return weights[static_cast<std::size_t>(a)] > weights[static_cast<std::size_t>(b)];
  });
  order.resize(k);
  return order;
}

TEST(ExactTopKeysTest, AreTheOraclesWithTheirWeights) {
  const LayerShape shape = {2, 4, 16, 8, 0.25F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 1000, 53);
  for (std::int64_t t = 0; t < 1000; t += 2) tokens.Mask(t);
  const std::vector<float> rows = RandomValues(30 * shape.query_row(), 54, 3.0F);
  const oracle::Queries queries = {rows.data(), oracle::AllVisible(30, 1000)};
  constexpr std::int64_t kTop = 9;
  const Answers answers =
      Attend(*engine, At(*engine, tokens, 1000), rows.data(), 30, {.top_k = kTop});
  for (std::int64_t q = 0; q < 30; ++q) {
    for (std::int64_t head = 0; head < 4; ++head) {
      const std::vector<double> weights =
          oracle::SoftmaxWeights(tokens.context(), queries, q, head);
      const std::vector<std::int64_t> expected = Largest(weights, kTop);
      for (std::int64_t i = 0; i < kTop; ++i) {
        const auto place = static_cast<std::size_t>((q * 4 + head) * kTop + i);
        EXPECT_EQ(answers.top_positions[place], expected[static_cast<std::size_t>(i)]);
        EXPECT_NEAR(static_cast<double>(answers.top_weights[place]),
                    weights[static_cast<std::size_t>(answers.top_positions[place])], 1e-6);
      }
    }
  }
}

TEST(ExactTopKeysTest, OfEqualKeysAreTheEarliest) {
  const LayerShape shape = {1, 1, 4, 4, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 16384 + 200, 55);
  std::fill(tokens.keys.begin(), tokens.keys.end(), 0.5F);
  for (const std::int64_t t : {0, 1, 5}) tokens.Mask(t);
  const std::vector<float> queries = RandomValues(8 * shape.query_row(), 56);
  for (const std::int64_t n : {1, 8}) {
    const Answers answers =
        Attend(*engine, At(*engine, tokens, tokens.count), queries.data(), n, {.top_k = 5});
    for (std::int64_t q = 0; q < n; ++q) {
      const Answers row = answers.Slice(q, 1, n);
      EXPECT_EQ(row.top_positions, (std::vector<std::int64_t>{2, 3, 4, 6, 7}));
      for (const float w : row.top_weights) EXPECT_NEAR(w, 1.0 / (16384 + 197), 1e-9);
    }
  }
}

TEST(ExactTopKeysTest, FewerKeysThanAskedForAreFilledUp) {
  const LayerShape shape = {1, 1, 4, 4, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 3, 57);
  tokens.Mask(1);
  const std::vector<float> query = {0, 0, 0, 0};
  const Answers answers = Attend(*engine, At(*engine, tokens, 3), query.data(), 1, {.top_k = 4});
  EXPECT_EQ(answers.top_positions, (std::vector<std::int64_t>{0, 2, -1, -1}));
  EXPECT_EQ(answers.top_weights, (std::vector<float>{0.5F, 0.5F, 0, 0}));
}

// Scores that differ by less than their weights can show.
TEST(ExactTopKeysTest, WeightsDescendAndEqualWeightsAscendInPosition) {
  const LayerShape shape = {1, 1, 1, 1, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 2000, 58);
  for (std::size_t t = 0; t < 2000; ++t) tokens.keys[t] = 1e-8F * static_cast<float>(t % 977);
  const std::vector<float> query = {1.0F};
  const Answers answers =
      Attend(*engine, At(*engine, tokens, 2000), query.data(), 1, {.top_k = 64});
  for (std::size_t i = 1; i < 64; ++i) {
    const bool ordered = answers.top_weights[i] < answers.top_weights[i - 1] ||
                         (answers.top_weights[i] == answers.top_weights[i - 1] &&
                          answers.top_positions[i] > answers.top_positions[i - 1]);
    EXPECT_TRUE(ordered) << i;
  }
}

}  // namespace
}  // namespace attnd::engine::exact_test
