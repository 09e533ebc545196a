#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "engine/linear/feature_map.h"
#include "engine/linear/linear_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<const FeatureMap> Make(const std::string& name, float epsilon, std::int64_t dim) {
  FeatureMapConfig config;
  config.name = name;
  config.epsilon = epsilon;
  FeatureMapOr map = MakeFeatureMap(config, {1, 1, dim, 1, 1.0F});
  EXPECT_TRUE(map.ok()) << map.status();
  return *std::move(map);
}

std::vector<float> Keys(const FeatureMap& map, const std::vector<float>& row) {
  std::vector<float> features(static_cast<std::size_t>(map.feature_dim()));
  const auto d = static_cast<std::int64_t>(row.size());
  Scratch scratch;
  map.MapKeys({row.data(), d, 1, 0, nullptr}, {features.data(), map.feature_dim(), nullptr},
              scratch);
  return features;
}

std::string Refusal(const LayerShape& shape, const LinearConfig& config) {
  const auto engine = MakeLinearEngine(shape, config);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(engine.status().message());
}

TEST(LinearFeatureMap, EveryNameOfTheRegistryMakesItsMap) {
  EXPECT_EQ(FeatureMapNames(),
            "elu_plus_one, relu, squared_relu, identity, favor_positive, favor_hyperbolic, "
            "favor_sharp, random_fourier, cosformer, dpfp, taylor, learned");
  const std::vector<float> x = {-2.0F, 0.0F, 3.0F};
  EXPECT_EQ(Keys(*Make("relu", 0, 3), x), (std::vector<float>{0, 0, 3}));
  EXPECT_EQ(Keys(*Make("relu", 0.5F, 3), x), (std::vector<float>{0.5F, 0.5F, 3.5F}));
  EXPECT_EQ(Keys(*Make("squared_relu", 0, 3), x), (std::vector<float>{0, 0, 9}));
  EXPECT_EQ(Keys(*Make("identity", 0, 3), x), x);
  const std::vector<float> elu = Keys(*Make("elu_plus_one", 0, 3), x);
  EXPECT_FLOAT_EQ(elu[0], std::exp(-2.0F));
  EXPECT_EQ(elu[1], 1.0F);
  EXPECT_EQ(elu[2], 4.0F);
}

TEST(LinearFeatureMap, SignsSayWhatADenominatorCanBe) {
  EXPECT_EQ(Make("elu_plus_one", 0, 1)->sign(), KernelSign::kPositive);
  EXPECT_EQ(Make("relu", 0, 1)->sign(), KernelSign::kNonNegative);
  EXPECT_EQ(Make("relu", 0.1F, 1)->sign(), KernelSign::kPositive);
  EXPECT_EQ(Make("squared_relu", 0, 1)->sign(), KernelSign::kNonNegative);
  EXPECT_EQ(Make("identity", 0, 1)->sign(), KernelSign::kSigned);
}

TEST(LinearFeatureMap, StridedRowsGiveTheBitsOfDenseRows) {
  const std::vector<float> x = {-1.5F, 0.25F, 2.0F, 9.0F, -0.5F, 1.0F, -3.0F, 9.0F};
  for (const std::string name : {"elu_plus_one", "relu", "squared_relu", "identity"}) {
    const auto map = Make(name, 0, 3);
    std::vector<float> strided(16, -7.0F);
    Scratch scratch;
    map->MapQueries({x.data(), 4, 2, 0, nullptr}, {strided.data(), 8, nullptr}, scratch);
    for (std::size_t row = 0; row < 2; ++row) {
      const auto first = x.begin() + static_cast<std::ptrdiff_t>(4 * row);
      const std::vector<float> dense = Keys(*map, {first, first + 3});
      for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(strided[8 * row + i], dense[i]) << name;
      EXPECT_EQ(strided[8 * row + 3], -7.0F) << name << ": wrote beyond c";
    }
  }
}

// elu(x) followed by + 1 loses the tail: off by 2.6e-2 at -15, exactly 0 below -17.3.
TEST(LinearFeatureMap, EluPlusOneKeepsItsTailForStronglyNegativeKeys) {
  const auto map = Make("elu_plus_one", 0, 1);
  for (int i = 0; i < 235; ++i) {
    const float x = -87.0F + 0.37F * static_cast<float>(i);
    const double truth = std::exp(static_cast<double>(x));
    const auto phi = static_cast<double>(Keys(*map, {x})[0]);
    EXPECT_NEAR(phi / truth, 1.0, 3e-7) << x;
  }
}

// exp(x) * (x <= 0) + (x + 1) * (x > 0) is infinity times zero above 88.7.
TEST(LinearFeatureMap, EluPlusOneIsFiniteForLargeKeys) {
  const auto map = Make("elu_plus_one", 0, 1);
  EXPECT_EQ(Keys(*map, {100.0F})[0], 101.0F);
  EXPECT_EQ(Keys(*map, {3e38F})[0], 3e38F);
  EXPECT_EQ(Keys(*map, {-3e38F})[0], 0.0F);
}

TEST(LinearFeatureMap, ErrorsNameFieldValueAndLimit) {
  const LayerShape shape;
  LinearConfig config;
  config.feature_map.name = "softmax";
  EXPECT_EQ(
      Refusal(shape, config),
      "feature_map.name is \"softmax\"; it must be one of elu_plus_one, relu, squared_relu, "
      "identity, favor_positive, favor_hyperbolic, favor_sharp, random_fourier, cosformer, dpfp, "
      "taylor, learned");
  config.feature_map.name = "elu_plus_one";
  config.feature_map.epsilon = 0.5F;
  EXPECT_EQ(Refusal(shape, config),
            "feature_map.epsilon is 0.5; it must not be set for elu_plus_one");
  for (const float epsilon : {-1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    config.feature_map.name = "relu";
    config.feature_map.epsilon = epsilon;
    EXPECT_THAT(Refusal(shape, config), HasSubstr("it must be finite and at least 0"));
  }
  config.feature_map = {};
  config.feature_map.name = "identity";
  EXPECT_THAT(Refusal(shape, config),
              HasSubstr("normalization is NORMALIZED; it must be UNNORMALIZED for identity"));
  config.feature_map = {};
  for (const float epsilon : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    config.guard_epsilon = epsilon;
    EXPECT_THAT(Refusal(shape, config), HasSubstr("guard.epsilon is "));
  }
}

}  // namespace
}  // namespace attnd::engine
