// The exact engine against the f64 oracle.
#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <tuple>
#include <vector>

#include "engine/exact/ref_exact.h"
#include "gtest/gtest.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::exact_test {
namespace {

struct Case {
  LayerShape shape;
  std::int64_t tokens;
  std::int64_t queries;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << "H=" << c.shape.kv_heads << " Hq=" << c.shape.query_heads << " d_k=" << c.shape.key_dim
      << " d_v=" << c.shape.value_dim << " tokens=" << c.tokens << " queries=" << c.queries;
}

class ExactAgainstOracle : public ::testing::TestWithParam<std::tuple<Case, DataType>> {};

TEST_P(ExactAgainstOracle, OutputsAndLogNormalizersAgree) {
  const auto& [c, storage] = GetParam();
  const auto engine = MakeExact(c.shape, storage);
  Tokens tokens = RandomTokens(c.shape, c.tokens, 1);
  for (std::int64_t t = 0; t < c.tokens; t += 7) tokens.Mask(t);
  tokens.Round(*engine);
  const std::vector<float> queries = RandomValues(c.queries * c.shape.query_row(), 2);
  const Answers answers = Attend(*engine, At(*engine, tokens, c.tokens), queries.data(), c.queries);
  const oracle::Answers expected =
      oracle::Softmax(tokens.context(), {queries.data(), oracle::AllVisible(c.queries, c.tokens)});
  EXPECT_LT(RelativeError(answers.outputs, expected.outputs), 5e-6);
  EXPECT_LT(RelativeError(answers.log_normalizers, expected.log_normalizers), 2e-6);
  for (const std::uint8_t flag : answers.flags) EXPECT_EQ(flag, 0);
}

const Case kCases[] = {
    {{1, 1, 64, 64, 0.125F}, 1000, 1},  {{1, 1, 64, 64, 0.125F}, 1000, 300},
    {{2, 8, 15, 80, 0.25F}, 333, 3},    {{2, 8, 15, 80, 0.25F}, 333, 100},
    {{3, 3, 100, 1, 0.1F}, 130, 2},     {{3, 3, 100, 1, 0.1F}, 130, 70},
    {{1, 5, 1, 15, 1.0F}, 64, 1},       {{1, 5, 1, 15, 1.0F}, 65, 9},
    {{1, 1, 300, 130, 0.06F}, 200, 20}, {{4, 4, 8, 16, 0.35F}, 2, 1},
    {{1, 2, 600, 17, 0.04F}, 100, 1},
};

INSTANTIATE_TEST_SUITE_P(Shapes, ExactAgainstOracle,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values(DataType::kF32, DataType::kBf16)));

TEST(ExactOracleTest, StepsSeeTheirOwnTokenAndNoLaterOne) {
  const LayerShape shape = {2, 4, 16, 24, 0.25F};
  const auto engine = MakeExact(shape);
  const Tokens tokens = RandomTokens(shape, 192, 3);
  const std::vector<float> queries = RandomValues(40 * shape.query_row(), 4);
  const Answers answers = Attend(*engine, At(*engine, tokens, 192), queries.data(), 40,
                                 {.causal = true, .first_cut = 25});
  const oracle::Answers expected =
      oracle::Softmax(tokens.context(), {queries.data(), oracle::CausallyVisible(40, 128 + 25)});
  EXPECT_LT(RelativeError(answers.outputs, expected.outputs), 2e-6);
  EXPECT_LT(RelativeError(answers.log_normalizers, expected.log_normalizers), 2e-6);
}

TEST(ExactOracleTest, ContextsLongerThanASplitAgree) {
  const LayerShape shape = {1, 1, 4, 3, 1.0F};
  const auto engine = MakeExact(shape);
  constexpr std::int64_t kSplit = 16384;
  const std::int64_t count = 2 * kSplit + 100;
  const Tokens tokens = RandomTokens(shape, count, 5);
  const std::vector<float> queries = RandomValues(20 * shape.query_row(), 6, 2.0F);
  for (const std::int64_t position : {kSplit, kSplit + 1, 2 * kSplit, count}) {
    for (const std::int64_t n : {1, 20}) {
      const Answers answers =
          Attend(*engine, At(*engine, tokens, position), queries.data(), n, {.top_k = 3});
      const oracle::Answers expected =
          oracle::Softmax(tokens.context(), {queries.data(), oracle::AllVisible(n, position)});
      EXPECT_LT(RelativeError(answers.outputs, expected.outputs), 5e-6) << position;
      EXPECT_LT(RelativeError(answers.log_normalizers, expected.log_normalizers), 2e-6);
    }
  }
}

// One key takes all the weight; differences of logits are far beyond what exp can hold.
TEST(ExactOracleTest, HugeLogitsSelectOneKey) {
  const LayerShape shape = {1, 1, 8, 8, 1.0F};
  const auto engine = MakeExact(shape);
  const Tokens tokens = RandomTokens(shape, 300, 7, 1e4F);
  const std::vector<float> queries = RandomValues(30 * shape.query_row(), 8, 1e4F);
  const Answers answers = Attend(*engine, At(*engine, tokens, 300), queries.data(), 30);
  const oracle::Answers expected =
      oracle::Softmax(tokens.context(), {queries.data(), oracle::AllVisible(30, 300)});
  EXPECT_LT(RelativeError(answers.outputs, expected.outputs), 1e-6);
  EXPECT_LT(RelativeError(answers.log_normalizers, expected.log_normalizers), 1e-6);
}

TEST(ExactOracleTest, IdenticalKeysGiveTheMeanValue) {
  const LayerShape shape = {1, 1, 16, 4, 1.0F};
  const auto engine = MakeExact(shape);
  Tokens tokens = RandomTokens(shape, 500, 9);
  for (std::size_t i = 16; i < tokens.keys.size(); ++i) tokens.keys[i] = tokens.keys[i - 16];
  const std::vector<float> queries = RandomValues(5 * shape.query_row(), 10);
  const Answers answers = Attend(*engine, At(*engine, tokens, 500), queries.data(), 5);
  for (std::size_t c = 0; c < 4; ++c) {
    double mean = 0;
    for (std::size_t t = 0; t < 500; ++t) mean += static_cast<double>(tokens.values[t * 4 + c]);
    for (std::size_t q = 0; q < 5; ++q) {
      EXPECT_NEAR(static_cast<double>(answers.outputs[q * 4 + c]), mean / 500, 1e-6);
    }
  }
}

// The engine's own definition and the oracle share no code; they must agree far beyond f32.
TEST(ExactOracleTest, TheReferenceBesideTheEngineAgrees) {
  const LayerShape shape = {2, 6, 10, 7, 0.5F};
  Tokens tokens = RandomTokens(shape, 100, 11);
  std::vector<std::uint8_t> masked(100, 0);
  for (std::int64_t t = 0; t < 100; t += 3) {
    tokens.Mask(t);
    masked[static_cast<std::size_t>(t)] = 1;
  }
  const std::vector<float> queries = RandomValues(shape.query_row(), 12);
  const oracle::Answers expected =
      oracle::Softmax(tokens.context(), {queries.data(), oracle::AllVisible(1, 100)});
  for (std::int64_t head = 0; head < 6; ++head) {
    std::vector<double> output(7);
    const double log_normalizer =
        RefExactRow(shape, queries.data() + head * 10, head, tokens.keys.data(),
                    tokens.values.data(), masked.data(), 100, output.data());
    EXPECT_NEAR(log_normalizer, expected.log_normalizers[static_cast<std::size_t>(head)], 1e-12);
    for (std::size_t c = 0; c < 7; ++c) {
      EXPECT_NEAR(output[c], expected.outputs[static_cast<std::size_t>(head) * 7 + c], 1e-12);
    }
  }
}

}  // namespace
}  // namespace attnd::engine::exact_test
