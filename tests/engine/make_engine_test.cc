// MakeEngine refuses what an engine could not hold, with one line that names field, value and
// limit.
#include <cstdint>
#include <limits>
#include <string>

#include "engine/engine_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

using ::testing::HasSubstr;

std::string Refusal(const LayerShape& shape) {
  const auto engine = MakeEngine({.shape = shape, .kind = ExactConfig{}});
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(engine.status().message());
}

TEST(MakeEngineTest, NamesFieldValueAndLimit) {
  EXPECT_EQ(Refusal({0, 1, 1, 1, 1.0F}), "kv_heads is 0; it must be 1 to 4096");
  EXPECT_EQ(Refusal({1, -4, 1, 1, 1.0F}), "query_heads is -4; it must be 1 to 4096");
  EXPECT_EQ(Refusal({1, 1, 4097, 1, 1.0F}), "key_dim is 4097; it must be 1 to 4096");
  EXPECT_EQ(Refusal({1, 1, 1, std::int64_t{1} << 40, 1.0F}),
            "value_dim is 1099511627776; it must be 1 to 4096");
  EXPECT_EQ(Refusal({2, 5, 1, 1, 1.0F}),
            "query_heads is 5; it must be a multiple of kv_heads, which is 2");
  EXPECT_EQ(Refusal({1, 4096, 4096, 1, 1.0F}),
            "query_heads * key_dim is 16777216; it must be at most 1048576");
  EXPECT_THAT(Refusal({1, 1, 1, 1, std::numeric_limits<float>::infinity()}),
              HasSubstr("scale is inf"));
  EXPECT_THAT(Refusal({1, 1, 1, 1, std::numeric_limits<float>::quiet_NaN()}),
              HasSubstr("scale is nan"));
}

TEST(MakeEngineTest, WindowsThatCannotBeAreRefusedByName) {
  const auto refusal = [](auto kind, std::int64_t window) {
    const auto engine = MakeEngine({{1, 1, 8, 8, 1.0F}, kind, window});
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument) << window;
    return std::string(engine.status().message());
  };
  for (const std::int64_t window : {std::int64_t{-1}, -(std::int64_t{1} << 62),
                                    (std::int64_t{1} << 28) + 64, std::int64_t{1} << 62}) {
    const std::string expected =
        "window_tokens is " + std::to_string(window) + "; it must be 0 (no window) to 268435456";
    EXPECT_EQ(refusal(ExactConfig{}, window), expected);
    EXPECT_EQ(refusal(LinearConfig{}, window), expected);
  }
  EXPECT_EQ(refusal(LinearConfig{}, 100),
            "window_tokens is 100; it must be a multiple of 64 for a linear engine, whose window "
            "moves by whole blocks");
  for (const std::int64_t window : {64, 1 << 28}) {
    EXPECT_TRUE(MakeEngine({{1, 1, 8, 8, 1.0F}, LinearConfig{}, window}).ok());
    EXPECT_TRUE(MakeEngine({{1, 1, 8, 8, 1.0F}, ExactConfig{}, window - 1}).ok());
  }
}

TEST(MakeEngineTest, KdeHasFourModesAndRefusesAccuraciesByName) {
  const auto refusal = [](const KdeConfig& config) {
    const auto engine = MakeEngine({.shape = {1, 1, 8, 8, 1.0F}, .kind = config});
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(engine.status().message());
  };
  EXPECT_EQ(refusal({.accuracy = {.target_error = -0.5}}),
            "kde.accuracy.target_error is -0.5; it must be at least 0 and finite");
  EXPECT_EQ(refusal({.accuracy = {.max_keys = -1}}),
            "kde.accuracy.max_keys is -1; it must be at least 0");
  for (const auto mode : {KdeConfig::Mode::kAuto, KdeConfig::Mode::kIndex,
                          KdeConfig::Mode::kCertified, KdeConfig::Mode::kPaper}) {
    EXPECT_TRUE(MakeEngine({.shape = {1, 1, 8, 8, 1.0F}, .kind = KdeConfig{.mode = mode}}).ok());
  }
}

TEST(MakeEngineTest, MakesTheEngineThatIsAskedFor) {
  const LayerShape shape = {2, 4, 8, 16, 0.5F};
  const auto exact = MakeEngine({.shape = shape, .kind = ExactConfig{DataType::kBf16}});
  ASSERT_TRUE(exact.ok()) << exact.status();
  EXPECT_STREQ((*exact)->name(), "exact");
  EXPECT_TRUE((*exact)->rounds_storage());
  EXPECT_EQ((*exact)->shape().value_dim, 16);
  const auto linear = MakeEngine({.shape = shape, .kind = LinearConfig{}});
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_STREQ((*linear)->name(), "linear");
  EXPECT_EQ(MakeEngine({.shape = shape, .kind = ExactConfig{DataType::kF16}}).status().message(),
            "exact.storage is F16; it must be F32 or BF16");
}

}  // namespace
}  // namespace attnd::engine
