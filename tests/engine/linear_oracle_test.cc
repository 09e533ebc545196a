// The linear engine against f64 attention in its similarity form.
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

struct Map {
  std::string name;
  float epsilon;
};

class LinearOracle : public testing::TestWithParam<std::tuple<Map, LayerShape>> {
 protected:
  const Map& map() const { return std::get<0>(GetParam()); }
  const LayerShape& shape() const { return std::get<1>(GetParam()); }

  void ExpectAgreement(const Stream& stream, std::int64_t position, std::int64_t queries) const {
    const auto engine = MakeLinear(shape(), Config(map().name, map().epsilon));
    const std::vector<float> rows = NormalNumbers(queries * shape().query_row(), 3);
    const Answers answers = Attend(*engine, At(*engine, stream, position), rows.data(), queries);
    const oracle::Answers truth = oracle::Linear(
        stream.context(position), {rows.data(), oracle::AllVisible(queries, position)},
        OracleMap(map().name), static_cast<double>(map().epsilon), map().name != "identity");
    EXPECT_LT(RelativeError(answers.outputs, truth.outputs), 1e-6);
    EXPECT_LT(RelativeError(answers.numerators, truth.numerators), 1e-6);
    EXPECT_LT(RelativeError(answers.denominators, truth.denominators), 1e-6);
    const bool normalized = map().name != "identity";
    for (std::size_t i = 0; i < answers.flags.size(); ++i) {
      const bool zero = normalized && truth.denominators[i] == 0;
      EXPECT_EQ(answers.flags[i], static_cast<int>(zero ? RowFlag::kNonPositive : RowFlag::kOk));
    }
  }
};

TEST_P(LinearOracle, AgreesWithoutMask) {
  const Stream stream = MakeStream(shape(), 300, 1);
  for (const std::int64_t position : {1, 63, 64, 65, 128, 300}) {
    SCOPED_TRACE(position);
    ExpectAgreement(stream, position, 6);
  }
}

TEST_P(LinearOracle, AgreesWithMaskedTokens) {
  Stream stream = MakeStream(shape(), 210, 2);
  for (std::int64_t token = 0; token < 210; ++token) {
    if (token % 3 == 1 || (token >= 64 && token < 128)) stream.Mask(token);
  }
  for (const std::int64_t position : {2, 65, 128, 129, 210}) {
    SCOPED_TRACE(position);
    ExpectAgreement(stream, position, 5);
  }
}

LayerShape Shape(std::int64_t kv_heads, std::int64_t group, std::int64_t key_dim,
                 std::int64_t value_dim, float scale = 1.0F) {
  return {kv_heads, kv_heads * group, key_dim, value_dim, scale};
}

INSTANTIATE_TEST_SUITE_P(
    AllMaps, LinearOracle,
    testing::Combine(testing::Values(Map{"elu_plus_one", 0}, Map{"relu", 0.001F},
                                     Map{"squared_relu", 0}, Map{"identity", 0}),
                     testing::Values(Shape(1, 1, 64, 64, 0.125F), Shape(2, 4, 15, 17, 0.5F),
                                     Shape(3, 1, 16, 1), Shape(1, 2, 100, 100, 0.1F))),
    [](const auto& instance) {
      const LayerShape& shape = std::get<1>(instance.param);
      return std::get<0>(instance.param).name + "_d" + std::to_string(shape.key_dim) + "_dv" +
             std::to_string(shape.value_dim);
    });

// One feature, and more features than one panel of the products.
TEST(LinearOracleSizes, OneFeatureAndManyFeatures) {
  for (const auto& [key_dim, value_dim] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {300, 20}}) {
    const LayerShape shape = Shape(1, 1, key_dim, value_dim);
    const Stream stream = MakeStream(shape, 150, 5);
    const auto engine = MakeLinear(shape, Config("elu_plus_one"));
    const std::vector<float> rows = NormalNumbers(4 * shape.query_row(), 6);
    const Answers answers = Attend(*engine, At(*engine, stream, 150), rows.data(), 4);
    const oracle::Answers truth =
        oracle::Linear(stream.context(150), {rows.data(), oracle::AllVisible(4, 150)},
                       oracle::FeatureMap::kEluPlusOne, 0, true);
    EXPECT_LT(RelativeError(answers.outputs, truth.outputs), 1e-6) << key_dim;
  }
}

// fla#1263: a mask applied before the map leaves phi(0) = 1 of every masked token in Z.
TEST(LinearMask, MaskIsAppliedAfterTheMapSoMaskedTokensLeaveNoTrace) {
  const LayerShape shape = Shape(2, 1, 8, 8);
  Stream masked = MakeStream(shape, 130, 8);
  for (std::int64_t token = 1; token < 130; ++token) masked.Mask(token);
  const auto engine = MakeLinear(shape, Config("elu_plus_one"));
  const std::vector<float> rows = NormalNumbers(shape.query_row(), 9);
  const Answers one = Attend(*engine, At(*engine, masked, 1), rows.data(), 1);
  const Answers all = Attend(*engine, At(*engine, masked, 130), rows.data(), 1);
  // The denominator is that of the one unmasked token, sealed or not.
  for (std::size_t i = 0; i < one.denominators.size(); ++i) {
    EXPECT_FLOAT_EQ(all.denominators[i], one.denominators[i]);
  }
}

// fla#594: denominators summed over heads (or over the group) are a constant factor that a test
// with equal heads does not see.
TEST(LinearHeads, EveryHeadHasItsOwnDenominator) {
  const LayerShape shape = Shape(2, 2, 4, 4);
  Stream stream = MakeStream(shape, 70, 10);
  // Head 1's keys are far larger than head 0's.
  for (std::int64_t token = 0; token < 70; ++token) {
    for (std::int64_t i = 0; i < 4; ++i) {
      stream.keys[static_cast<std::size_t>(token * 8 + 4 + i)] = 1000.0F;
    }
  }
  const auto engine = MakeLinear(shape, Config("elu_plus_one"));
  const std::vector<float> rows(static_cast<std::size_t>(shape.query_row()), 1.0F);
  const Answers answers = Attend(*engine, At(*engine, stream, 70), rows.data(), 1);
  EXPECT_LT(answers.denominators[0], 5000.0F);
  EXPECT_EQ(answers.denominators[0], answers.denominators[1]);
  EXPECT_FLOAT_EQ(answers.denominators[2], 70.0F * 4 * 2 * 1001);
  EXPECT_EQ(answers.denominators[2], answers.denominators[3]);
}

// fla#267: numerators over all tokens, denominators over the last call's only.
TEST(LinearSealing, KeySummaryIsKeptBetweenSeals) {
  const LayerShape shape = Shape(1, 1, 16, 16);
  const Stream stream = MakeStream(shape, 64 * 4 + 1, 11);
  const auto engine = MakeLinear(shape, Config("elu_plus_one"));
  const std::vector<float> rows = NormalNumbers(shape.query_row(), 12);
  Cutting one_by_one;
  one_by_one.spans = {1};
  const Answers answers =
      Attend(*engine, At(*engine, stream, stream.tokens, one_by_one), rows.data(), 1);
  const oracle::Answers truth = oracle::Linear(stream.context(stream.tokens),
                                               {rows.data(), oracle::AllVisible(1, stream.tokens)},
                                               oracle::FeatureMap::kEluPlusOne, 0, true);
  EXPECT_LT(RelativeError(answers.denominators, truth.denominators), 1e-6);
}

// A session of strongly negative keys has a small denominator, not a denominator of 0.
TEST(LinearTail, StronglyNegativeKeysStillGiveAnAverageOfValues) {
  const LayerShape shape = Shape(1, 1, 16, 16);
  Stream stream = MakeStream(shape, 200, 13);
  for (float& key : stream.keys) key -= 30.0F;
  LinearConfig config = Config("elu_plus_one");
  config.guard_epsilon = 1e-30F;
  const auto engine = MakeLinear(shape, config);
  const std::vector<float> rows = NormalNumbers(shape.query_row(), 14);
  const Answers answers = Attend(*engine, At(*engine, stream, 200), rows.data(), 1);
  const oracle::Answers truth =
      oracle::Linear(stream.context(200), {rows.data(), oracle::AllVisible(1, 200)},
                     oracle::FeatureMap::kEluPlusOne, 0, true);
  EXPECT_EQ(answers.flags[0], 0);
  EXPECT_LT(RelativeError(answers.outputs, truth.outputs), 1e-6);
}

}  // namespace
}  // namespace attnd::engine::linear_test
