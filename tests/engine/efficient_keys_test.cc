// exp of key numbers as mantissas and steps.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/efficient/efficient_engine.h"
#include "engine/efficient/key_columns.h"
#include "engine/simd/maps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine {
namespace {

using ::testing::HasSubstr;

constexpr double kLn2 = 0.693147180559945309417;

TEST(EfficientKeys, MantissaTimesStepsIsTheExponential) {
  float magnitude = 1e-3F;
  while (magnitude < 0x1p29F) {
    for (const float key : {magnitude, -magnitude}) {
      const SplitKey split = Split(key);
      const double log_mantissa = static_cast<double>(key) - 64 * kLn2 * split.steps;
      EXPECT_LE(std::abs(split.log_mantissa), 22.2F) << key;
      // An f32 near 22 is within 2^-20 of a number; f64 products of 2^29 are within 2^-24.
      EXPECT_NEAR(static_cast<double>(split.log_mantissa), log_mantissa, 0x1p-20) << key;
    }
    magnitude *= 1.0173F;
  }
}

TEST(EfficientKeys, OrdinaryKeysHaveNoSteps) {
  for (int step = 0; step < 119; ++step) {
    const float key = -22.0F + 0.37F * static_cast<float>(step);
    EXPECT_EQ(Split(key).steps, 0) << key;
    EXPECT_EQ(Split(key).log_mantissa, key) << key;
  }
  EXPECT_EQ(Split(22.3F).steps, 1);
  EXPECT_EQ(Split(-22.3F).steps, -1);
}

TEST(EfficientKeys, LargeKeysDifferByTwoStepsAndFitTheRange) {
  constexpr float kMax = std::numeric_limits<float>::max();
  float key = 0x1p29F;
  for (int i = 0; i < 1000; ++i) {
    const float next = std::nextafter(key, kMax);
    EXPECT_EQ(Split(next).steps - Split(key).steps, 2);
    EXPECT_EQ(Split(-next).steps, -Split(next).steps);
    EXPECT_EQ(Split(next).log_mantissa, 0.0F);
    key = i % 10 == 0 ? key * 1.6F : next;
  }
  EXPECT_GT(Split(kMax).steps, 1'600'000'000);
  EXPECT_LT(Split(-kMax).steps, -1'600'000'000);
  EXPECT_EQ(StepFactor(Split(-kMax).steps, Split(kMax).steps), 0.0F);
  EXPECT_EQ(StepFactor(kNoSteps, Split(kMax).steps), 0.0F);
}

// A whole row takes the short way only if all its keys are ordinary; the bits are the same.
TEST(EfficientKeys, ARowsNumbersDoNotDependOnEachOther) {
  const LayerShape shape = {1, 1, 20, 1, 1.0F};
  const LinearLayer layer = {shape, {}, nullptr, LinearDims(20, 1)};
  const std::vector<float> ordinary = linear_test::NormalNumbers(20, 1, 6.0F);
  std::vector<float> mixed = ordinary;
  mixed[7] = 5000.0F;
  std::vector<float> mantissas(32);
  std::vector<float> others(32);
  std::vector<std::int32_t> steps(32, -5);
  std::vector<std::int32_t> other_steps(32, -5);
  EXPECT_TRUE(EncodeKeyRows(layer, {ordinary.data(), 1, 0, 1}, 0, mantissas.data(), steps.data()));
  EXPECT_FALSE(EncodeKeyRows(layer, {mixed.data(), 1, 0, 1}, 0, others.data(), other_steps.data()));
  EXPECT_EQ(other_steps[7], 113);
  for (std::size_t a = 0; a < 32; ++a) {
    if (a == 7) continue;
    EXPECT_EQ(mantissas[a], others[a]) << a;
    EXPECT_EQ(steps[a], -5) << a << ": not written where all are 0";
    EXPECT_EQ(other_steps[a], 0) << a;
    if (a >= 20) {
      EXPECT_EQ(mantissas[a], 0.0F) << a;
    }
  }
}

std::string Refusal(const LinearConfig& config) {
  const auto engine = MakeEngine({{1, 1, 8, 8, 1.0F}, config});
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(engine.status().message());
}

TEST(EfficientConfig, WhatHasNoMeaningIsRefused) {
  LinearConfig config;
  config.feature_map.name = "efficient";
  EXPECT_TRUE(MakeEngine({{1, 1, 8, 8, 1.0F}, config}).ok());
  LinearConfig bad = config;
  bad.normalized = false;
  EXPECT_THAT(Refusal(bad), HasSubstr("normalization is UNNORMALIZED; it must be NORMALIZED"));
  bad = config;
  bad.guard = GuardPolicy::kClamp;
  EXPECT_THAT(Refusal(bad), HasSubstr("guard.policy is CLAMP; it must be STRICT"));
  bad = config;
  bad.guard_epsilon = 1e-3F;
  EXPECT_THAT(Refusal(bad), HasSubstr("guard.epsilon is 0.001; it must be 1e-06"));
  bad = config;
  bad.update.delta = true;
  EXPECT_THAT(Refusal(bad), HasSubstr("update is set"));
  bad = config;
  bad.feature_map.epsilon = 0.5F;
  EXPECT_THAT(Refusal(bad), HasSubstr("feature_map.epsilon is 0.5"));
  EXPECT_EQ(
      MakeEngine({{4, 4, 4096, 4096, 1.0F}, config}).status().message(),
      "kv_heads * c * max(value_dim + 1, 64) is 67125248; it must be at most 8388608 (c = 4096 "
      "features a key)");
}

TEST(EfficientConfig, ItIsALinearEngineWhoseAnswersCannotBeMerged) {
  LinearConfig config;
  config.feature_map.name = "efficient";
  const auto engine = *MakeEngine({{2, 4, 20, 8, 1.0F}, config});
  EXPECT_STREQ(engine->name(), "linear");
  EXPECT_FALSE(engine->mergeable());
  EXPECT_FALSE(engine->has_denominators());
  EXPECT_EQ(engine->map_dim(), 20);
  EXPECT_EQ(engine->bytes_per_token(), 0);
  Scratch scratch;
  const auto state = engine->NewState();
  EXPECT_LT(state->bytes(), 300);
  const std::vector<float> zeros(std::size_t{64} * 40);
  const Block block = {zeros.data(), zeros.data(), ~RowMask{0}, nullptr, nullptr};
  ASSERT_TRUE(engine->Seal(*state, 0, {&block, 1}, scratch).ok());
  EXPECT_EQ(state->bytes() + Tail::Bytes(engine->shape(), engine->tail_layout()),
            engine->fixed_bytes());
}

}  // namespace
}  // namespace attnd::engine
