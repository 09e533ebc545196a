// Contexts made to break an index. None may fail, none may hide a heavy key, and what cannot be
// summarised has to be read.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::kde_test {
namespace {

constexpr std::int64_t kTokens = 4096 + 500;

struct Case {
  std::string name;
  LayerShape shape;
  std::function<void(Tokens&)> change;
  float query_factor = 1.0F;
  double bound = 0.05;  // of the 95 % quantile of errors in spreads
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

class KdeAdversarial : public ::testing::TestWithParam<Case> {};

TEST_P(KdeAdversarial, AnswersAsTheOracleDoes) {
  const Case& c = GetParam();
  Tokens tokens = exact_test::RandomTokens(c.shape, kTokens, 95);
  c.change(tokens);
  const auto engine = MakeKde(c.shape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
  std::vector<float> queries = KeysAsQueries(tokens, 53, c.query_factor);
  const std::vector<float> others = RandomValues(20 * c.shape.query_row(), 96, c.query_factor);
  queries.insert(queries.end(), others.begin(), others.end());
  const std::int64_t count = static_cast<std::int64_t>(queries.size()) / c.shape.query_row();
  const Answers answers = Ask(*engine, snapshot, queries.data(), count, {.top_k = 1});
  for (const std::uint8_t flag : answers.exact.flags) ASSERT_EQ(flag, 0);
  for (const float error : answers.errors) ASSERT_TRUE(std::isfinite(error) && error >= 0.0F);
  EXPECT_LE(Quantile(UnitErrors(tokens, queries, answers), 0.95), c.bound);
  const oracle::Answers truth =
      oracle::Softmax(tokens.context(), {queries.data(), oracle::AllVisible(count, tokens.count)});
  for (std::size_t row = 0; row < truth.log_normalizers.size(); ++row) {
    const double slack = 1e-4 * (1.0 + std::abs(truth.log_normalizers[row]));
    EXPECT_LE(static_cast<double>(answers.bounds[2 * row]), truth.log_normalizers[row] + slack);
    EXPECT_GE(static_cast<double>(answers.bounds[2 * row + 1]), truth.log_normalizers[row] - slack);
  }
}

void FillKeys(Tokens& tokens, std::int64_t token, float value) {
  std::fill_n(tokens.keys.begin() + token * tokens.shape.key_row(), tokens.shape.key_row(), value);
}

const LayerShape kPlain = {1, 2, 12, 8, 0.4F};

INSTANTIATE_TEST_SUITE_P(
    Sets, KdeAdversarial,
    ::testing::Values(Case{"IdenticalKeys", kPlain,
                           [](Tokens& all) {
                             for (std::int64_t i = 0; i < all.count; ++i) FillKeys(all, i, 0.5F);
                           }},
                      Case{"ZeroKeys", kPlain,
                           [](Tokens& all) { std::fill(all.keys.begin(), all.keys.end(), 0.0F); }},
                      Case{"HugeLogits", kPlain, [](Tokens&) {}, 300.0F, 1e-3},
                      Case{"OneGiantOutlier", kPlain,
                           [](Tokens& all) { FillKeys(all, 1500, 1e6F); }, 1.0F, 0.1},
                      Case{"OneOutlierBeyondSquares", kPlain,
                           [](Tokens& all) { FillKeys(all, 1500, 1e30F); }, 1.0F, 0.1},
                      Case{"NeedleInAFarCluster", kPlain,
                           [](Tokens& all) {
                             // All in one tight ball; one key among them that its cluster does not
                             // show.
                             for (float& key : all.keys) key = 0.01F * key - 1.0F;
                             FillKeys(all, 777, 6.0F);
                           },
                           1.0F, 0.02},
                      Case{"TwoTightBalls", kPlain,
                           [](Tokens& all) {
                             for (std::int64_t i = 0; i < all.count; ++i) {
                               for (std::int64_t c = 0; c < all.shape.key_row(); ++c) {
                                 float& key = all.keys[Size(i * all.shape.key_row() + c)];
                                 key = 1e-3F * key + (i % 3 == 0 ? 2.0F : -2.0F);
                               }
                             }
                           }},
                      Case{"OneComponent", {1, 1, 1, 1, 1.0F}, [](Tokens&) {}, 2.0F},
                      Case{"TinyKeys", kPlain,
                           [](Tokens& all) {
                             for (float& key : all.keys) key *= 1e-30F;
                           }},
                      Case{"MostlyMasked", kPlain,
                           [](Tokens& all) {
                             for (std::int64_t i = 0; i < all.count; ++i) {
                               if (i % 97 != 5) all.Mask(i);
                             }
                           }}),
    [](const auto& set) { return set.param.name; });

TEST(KdeAdversarialTest, NoTokenToSeeIsAnEmptyAnswer) {
  Tokens tokens = exact_test::RandomTokens(kPlain, kTokens, 97);
  for (std::int64_t t = 0; t < tokens.count; ++t) tokens.Mask(t);
  const auto engine = MakeKde(kPlain);
  const std::vector<float> queries = RandomValues(5 * kPlain.query_row(), 98);
  for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1}, kTokens}) {
    const Answers answers =
        Ask(*engine, exact_test::At(*engine, tokens, position), queries.data(), 5);
    for (const std::uint8_t flag : answers.exact.flags) {
      EXPECT_EQ(flag, static_cast<std::uint8_t>(RowFlag::kEmpty));
    }
    for (const float output : answers.exact.outputs) EXPECT_EQ(output, 0.0F);
  }
}

// The largest finite keys make scores overflow, which is said row by row.
TEST(KdeAdversarialTest, TheLargestKeysOverflowAsTheyDoExactly) {
  Tokens tokens = exact_test::RandomTokens(kPlain, kTokens, 99);
  for (std::int64_t t = 0; t < tokens.count; t += 2) FillKeys(tokens, t, 3e38F);
  const auto engine = MakeKde(kPlain);
  const auto exact = exact_test::MakeExact(kPlain);
  std::vector<float> queries = RandomValues(20 * kPlain.query_row(), 100, 1e-38F);
  for (std::size_t i = 0; i < queries.size() / 2; ++i) queries[i] = std::abs(queries[i]) * 1e38F;
  const Answers answers =
      Ask(*engine, exact_test::At(*engine, tokens, tokens.count), queries.data(), 20);
  const exact_test::Answers expected =
      exact_test::Attend(*exact, exact_test::At(*exact, tokens, tokens.count), queries.data(), 20);
  EXPECT_EQ(answers.exact.flags, expected.flags);
}

}  // namespace
}  // namespace attnd::engine::kde_test
