// Denominators that are not safely positive, and answers over nothing.
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/linear/denominator_guard.h"
#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

LinearConfig Guard(GuardPolicy policy, float epsilon) {
  LinearConfig config = Config("relu");
  config.guard = policy;
  config.guard_epsilon = epsilon;
  return config;
}

void ExpectGuarded(const LinearConfig& config, float denominator, float divisor, RowFlag flag) {
  const Guarded guarded = ApplyGuard(config, denominator);
  EXPECT_EQ(guarded.divisor, divisor) << denominator;
  EXPECT_EQ(guarded.flag, flag) << denominator;
}

TEST(LinearGuard, StrictDividesOnlyFromEpsilonOn) {
  const LinearConfig config = Guard(GuardPolicy::kStrict, 0.5F);
  ExpectGuarded(config, 2.0F, 2.0F, RowFlag::kOk);
  ExpectGuarded(config, 0.5F, 0.5F, RowFlag::kOk);
  ExpectGuarded(config, 0.25F, 0.0F, RowFlag::kTiny);
  ExpectGuarded(config, 0.0F, 0.0F, RowFlag::kNonPositive);
  ExpectGuarded(config, -1.0F, 0.0F, RowFlag::kNonPositive);
}

TEST(LinearGuard, AddEpsilonAddsAlwaysAndFlags) {
  const LinearConfig config = Guard(GuardPolicy::kAddEpsilon, 0.5F);
  ExpectGuarded(config, 2.0F, 2.5F, RowFlag::kOk);
  ExpectGuarded(config, 0.25F, 0.75F, RowFlag::kTiny);
  ExpectGuarded(config, 0.0F, 0.5F, RowFlag::kNonPositive);
  ExpectGuarded(config, -1.0F, 0.0F, RowFlag::kNonPositive);
}

TEST(LinearGuard, ClampRaisesToEpsilonAndFlags) {
  const LinearConfig config = Guard(GuardPolicy::kClamp, 0.5F);
  ExpectGuarded(config, 2.0F, 2.0F, RowFlag::kOk);
  ExpectGuarded(config, 0.25F, 0.5F, RowFlag::kTiny);
  ExpectGuarded(config, 0.0F, 0.5F, RowFlag::kNonPositive);
  ExpectGuarded(config, -1.0F, 0.5F, RowFlag::kNonPositive);
}

TEST(LinearGuard, UnnormalisedLayersDoNotLookAtTheDenominator) {
  const LinearConfig config = Config("identity");
  ExpectGuarded(config, -3.0F, 1.0F, RowFlag::kOk);
  ExpectGuarded(config, 0.0F, 1.0F, RowFlag::kOk);
}

// One token with key (k, 0) and value (3, -6); one query (q, 0).
Answers OneToken(const LinearConfig& config, float key, float query) {
  const LayerShape shape = {1, 1, 2, 2, 1.0F};
  Stream stream = MakeStream(shape, 1, 1);
  stream.keys = {key, 0.0F};
  stream.values = {3.0F, -6.0F};
  const auto engine = MakeLinear(shape, config);
  const std::vector<float> row = {query, 0.0F};
  return Attend(*engine, At(*engine, stream, 1), row.data(), 1);
}

TEST(LinearGuard, PoliciesReachTheOutputsAndSumsStayUnguarded) {
  Answers answers = OneToken(Guard(GuardPolicy::kStrict, 0.5F), 0.5F, 0.5F);
  EXPECT_EQ(answers.outputs, (std::vector<float>{0, 0}));
  EXPECT_EQ(answers.numerators, (std::vector<float>{0.75F, -1.5F}));
  EXPECT_EQ(answers.denominators[0], 0.25F);
  EXPECT_EQ(answers.flags[0], 2);
  answers = OneToken(Guard(GuardPolicy::kAddEpsilon, 0.5F), 0.5F, 0.5F);
  EXPECT_EQ(answers.outputs, (std::vector<float>{1, -2}));
  EXPECT_EQ(answers.flags[0], 2);
  answers = OneToken(Guard(GuardPolicy::kClamp, 0.5F), 0.5F, 0.5F);
  EXPECT_EQ(answers.outputs, (std::vector<float>{1.5F, -3.0F}));
  EXPECT_EQ(answers.denominators[0], 0.25F);
  EXPECT_EQ(answers.flags[0], 2);
}

// DIFFormer#3: 0 / 0; elsewhere a silent 0 / epsilon.
TEST(LinearGuard, ZeroDenominatorIsFlaggedAndNeverDividedBy) {
  for (const GuardPolicy policy :
       {GuardPolicy::kStrict, GuardPolicy::kAddEpsilon, GuardPolicy::kClamp}) {
    const Answers answers = OneToken(Guard(policy, 1e-6F), -1.0F, 1.0F);
    EXPECT_EQ(answers.flags[0], static_cast<std::uint8_t>(RowFlag::kNonPositive));
    EXPECT_EQ(answers.outputs, (std::vector<float>{0, 0}));
  }
}

TEST(LinearGuard, UnnormalisedOutputsAreTheNumerators) {
  LinearConfig config = Config("identity");
  const Answers answers = OneToken(config, -2.0F, 1.0F);
  EXPECT_EQ(answers.outputs, (std::vector<float>{-6, 12}));
  EXPECT_EQ(answers.outputs, answers.numerators);
  EXPECT_EQ(answers.denominators[0], -2.0F);
  EXPECT_EQ(answers.flags[0], 0);
}

TEST(LinearGuard, NothingThereIsZerosAndTheFlagEmpty) {
  const LayerShape shape = {2, 4, 8, 8, 1.0F};
  Stream stream = MakeStream(shape, 200, 41);
  for (std::int64_t token = 0; token < 200; ++token) stream.Mask(token);
  const auto engine = MakeLinear(shape, Config("elu_plus_one"));
  const std::vector<float> rows = NormalNumbers(3 * shape.query_row(), 42);
  for (const std::int64_t position : {0, 1, 64, 65, 200}) {
    const Answers answers = Attend(*engine, At(*engine, stream, position), rows.data(), 3);
    EXPECT_EQ(answers.outputs, std::vector<float>(answers.outputs.size(), 0.0F));
    EXPECT_EQ(answers.numerators, std::vector<float>(answers.numerators.size(), 0.0F));
    EXPECT_EQ(answers.denominators, std::vector<float>(answers.denominators.size(), 0.0F));
    EXPECT_EQ(answers.flags, std::vector<std::uint8_t>(answers.flags.size(), 1));
  }
}

TEST(LinearGuard, CausalQueriesBeforeTheFirstUnmaskedTokenAreEmpty) {
  const LayerShape shape = {1, 1, 8, 8, 1.0F};
  Stream stream = MakeStream(shape, 4, 43);
  stream.Mask(0);
  stream.Mask(1);
  const auto engine = MakeLinear(shape, Config("elu_plus_one"));
  const std::vector<float> rows = NormalNumbers(4 * shape.query_row(), 44);
  const Answers answers = AttendCausally(*engine, At(*engine, stream, 4), rows.data(), 4, 1);
  EXPECT_EQ(answers.flags, (std::vector<std::uint8_t>{1, 1, 0, 0}));
}

TEST(LinearGuard, OutputsAreNeverNegativeZero) {
  const LayerShape shape = {1, 1, 4, 4, 1.0F};
  Stream stream = MakeStream(shape, 70, 45);
  for (float& value : stream.values) value = -0.0F;
  const auto engine = MakeLinear(shape, Config("elu_plus_one"));
  const std::vector<float> rows = NormalNumbers(shape.query_row(), 46);
  const Answers answers = Attend(*engine, At(*engine, stream, 70), rows.data(), 1);
  for (const float output : answers.outputs) EXPECT_FALSE(std::signbit(output));
  for (const float number : answers.numerators) EXPECT_FALSE(std::signbit(number));
}

}  // namespace
}  // namespace attnd::engine::linear_test
