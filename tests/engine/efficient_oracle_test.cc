// Efficient Attention against its definition in f64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

constexpr std::int64_t kTokens = 300;

// The largest difference, in units of the values' spread: they are standard normal. (Relative to an
// output it has no bound: outputs are means of values and may be about 0.)
double LargestError(const std::vector<float>& outputs, const std::vector<double>& truth) {
  EXPECT_EQ(outputs.size(), truth.size());
  double largest = 0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    // Not std::max, which loses a NaN.
    const double error = std::abs(static_cast<double>(outputs[i]) - truth[i]);
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

constexpr double kTolerance = 1e-6;

struct KeyCase {
  std::string name;
  float range;  // standard deviation of key numbers
};

void PrintTo(const KeyCase& c, std::ostream* os) { *os << c.name; }

class EfficientOracle : public testing::TestWithParam<std::tuple<KeyCase, LayerShape>> {
 protected:
  EfficientOracle() : stream_(MakeStream(shape(), kTokens, 1)) { ScaleKeys(range(), &stream_); }

  float range() const { return std::get<0>(GetParam()).range; }
  const LayerShape& shape() const { return std::get<1>(GetParam()); }

  void ExpectAgreement(const Stream& stream, std::int64_t position) const {
    SCOPED_TRACE(position);
    constexpr std::int64_t kQueries = 5;
    const auto engine = MakeLinear(shape(), Config("efficient"));
    const std::vector<float> rows = NormalNumbers(kQueries * shape().query_row(), 3, 2.0F);
    const Answers answers = Attend(*engine, At(*engine, stream, position), rows.data(), kQueries);
    const oracle::Answers truth = oracle::Efficient(
        stream.context(position), {rows.data(), oracle::AllVisible(kQueries, position)});
    EXPECT_LT(LargestError(answers.outputs, truth.outputs), kTolerance);
    EXPECT_EQ(answers.flags, truth.empty) << "empty is 1 in both";
  }

  Stream stream_;
};

TEST_P(EfficientOracle, AgreesWithoutMask) {
  for (const std::int64_t position : {1, 2, 63, 64, 65, 128, 129, 300}) {
    ExpectAgreement(stream_, position);
  }
}

TEST_P(EfficientOracle, AgreesWithMaskedTokens) {
  for (std::int64_t token = 0; token < kTokens; ++token) {
    if (token < 2 || token % 3 == 1 || (token >= 64 && token < 128)) stream_.Mask(token);
  }
  for (const std::int64_t position : {1, 2, 3, 65, 128, 129, 192, 300}) {
    ExpectAgreement(stream_, position);
  }
}

TEST_P(EfficientOracle, StepsAreSoftmaxesOverThePrefix) {
  stream_.Mask(0);
  stream_.Mask(70);
  const auto engine = MakeLinear(shape(), Config("efficient"));
  for (const std::int64_t last : {64, 128, 300}) {
    const std::int64_t count = (last - 1) % kBlockTokens + 1;
    const std::vector<float> rows = NormalNumbers(count * shape().query_row(), 4);
    const Answers answers =
        AttendCausally(*engine, At(*engine, stream_, last), rows.data(), count, 1);
    const oracle::Answers truth = oracle::Efficient(
        stream_.context(last), {rows.data(), oracle::CausallyVisible(count, last - count + 1)});
    EXPECT_LT(LargestError(answers.outputs, truth.outputs), kTolerance) << last;
    EXPECT_EQ(answers.flags, truth.empty) << last;
  }
}

LayerShape Shape(std::int64_t kv_heads, std::int64_t group, std::int64_t key_dim,
                 std::int64_t value_dim, float scale = 1.0F) {
  return {kv_heads, kv_heads * group, key_dim, value_dim, scale};
}

INSTANTIATE_TEST_SUITE_P(
    All, EfficientOracle,
    testing::Combine(testing::Values(KeyCase{"zeros", 0}, KeyCase{"ones", 1}, KeyCase{"tens", 30},
                                     KeyCase{"hundreds", 100}, KeyCase{"huge", 1e30F}),
                     testing::Values(Shape(1, 1, 64, 64, 0.125F), Shape(2, 4, 15, 17, 0.5F),
                                     Shape(3, 1, 16, 1), Shape(1, 1, 1, 1),
                                     Shape(1, 2, 300, 20, 0.25F))),
    [](const auto& instance) {
      const LayerShape& shape = std::get<1>(instance.param);
      return std::get<0>(instance.param).name + "_d" + std::to_string(shape.key_dim) + "_dv" +
             std::to_string(shape.value_dim);
    });

class EfficientTraps : public testing::Test {
 protected:
  // The worst error of Attends at several positions and of the Step that ends at the last.
  double Error(const Stream& stream, const std::vector<std::int64_t>& positions) const {
    const auto engine = MakeLinear(stream.shape, Config("efficient"));
    const std::vector<float> rows = NormalNumbers(4 * stream.shape.query_row(), 5);
    double worst = 0;
    for (const std::int64_t position : positions) {
      const Answers answers = Attend(*engine, At(*engine, stream, position), rows.data(), 4);
      const oracle::Answers truth = oracle::Efficient(
          stream.context(position), {rows.data(), oracle::AllVisible(4, position)});
      worst = std::max(worst, LargestError(answers.outputs, truth.outputs));
    }
    return worst;
  }

  LayerShape shape_ = {1, 1, 8, 6, 1.0F};
  std::vector<std::int64_t> positions_ = {1, 40, 64, 65, 80, 128, 130, 250, 330};
};

// One huge number takes over its column for good, and no other.
TEST_F(EfficientTraps, OneHugeColumnThenOrdinaryKeys) {
  for (const float huge : {40.0F, 100.0F, 500.0F, 1e6F, 3e38F, -1e30F}) {
    for (const std::int64_t token : {0, 50, 63, 64, 75, 200}) {
      Stream stream = MakeStream(shape_, 330, 6);
      stream.keys[static_cast<std::size_t>(token * 8 + 3)] = huge;
      EXPECT_LT(Error(stream, positions_), kTolerance) << huge << " at " << token;
    }
  }
}

TEST_F(EfficientTraps, KeysThatGrowOrShrinkWithoutEnd) {
  for (const float rate : {0.5F, 3.0F, -0.5F, -3.0F}) {
    Stream stream = MakeStream(shape_, 330, 7);
    for (std::size_t token = 0; token < 330; ++token) {
      for (std::size_t a = 0; a < 8; a += 2) {
        stream.keys[token * 8 + a] += rate * static_cast<float>(token);
      }
    }
    EXPECT_LT(Error(stream, positions_), kTolerance) << rate;
  }
}

// Clamped exponents would make 1e29 and 1e30 weigh the same.
TEST_F(EfficientTraps, HugeKeysKeepTheirOrder) {
  Stream stream = MakeStream(shape_, 4, 8);
  const auto engine = MakeLinear(shape_, Config("efficient"));
  const std::vector<float> row = NormalNumbers(8, 9);
  for (const auto& [small, large] : {std::pair{1e29F, 1e30F},
                                     {1e30F, std::nextafter(1e30F, 2e30F)},
                                     {0x1p29F, 0x1.000002p29F},
                                     {-1e30F, -1e29F},
                                     {-3e38F, 3e38F},
                                     {-1e20F, 0.0F}}) {
    std::fill_n(stream.keys.begin(), 32, small);
    std::fill_n(stream.keys.begin() + 16, 8, large);
    const Answers answers = Attend(*engine, At(*engine, stream, 4), row.data(), 1);
    for (std::size_t j = 0; j < 6; ++j) {
      EXPECT_FLOAT_EQ(answers.outputs[j], stream.values[2 * 6 + j]) << small << " " << large;
    }
  }
}

// exp(0) = 1: a masked token's zero row must not count, nor the padding of columns.
TEST_F(EfficientTraps, MaskedTokensLeaveNoTrace) {
  Stream stream = MakeStream(shape_, 130, 10);
  ScaleKeys(0.0F, &stream);
  std::fill(stream.keys.begin(), stream.keys.begin() + 8, -60.0F);
  for (std::int64_t token = 1; token < 130; ++token) stream.Mask(token);
  const auto engine = MakeLinear(shape_, Config("efficient"));
  const std::vector<float> row = NormalNumbers(8, 11);
  for (const std::int64_t position : {1, 30, 64, 65, 130}) {
    const Answers answers = Attend(*engine, At(*engine, stream, position), row.data(), 1);
    for (std::size_t j = 0; j < 6; ++j) EXPECT_FLOAT_EQ(answers.outputs[j], stream.values[j]);
  }
}

// The weights of a row add up to 1: equal values come out as they are, up to the rounding of f32
// sums over a block.
TEST_F(EfficientTraps, ConstantValuesComeOutAsTheyAre) {
  for (const LayerShape& shape : {shape_, LayerShape{2, 4, 64, 64, 0.125F}}) {
    const auto engine = MakeLinear(shape, Config("efficient"));
    for (const float range : {0.0F, 1.0F, 10.0F, 30.0F, 1e30F}) {
      Stream stream = MakeStream(shape, 1000, 12);
      ScaleKeys(range, &stream);
      std::fill(stream.values.begin(), stream.values.end(), 0.7F);
      const std::vector<float> rows = NormalNumbers(3 * shape.query_row(), 13, 3.0F);
      const Answers answers = Attend(*engine, At(*engine, stream, 1000), rows.data(), 3);
      for (const float output : answers.outputs) ASSERT_NEAR(output, 0.7F, 1e-6F) << range;
    }
  }
}

// The keys' softmax is over the sequence, so a number added to all keys of a column cancels.
TEST_F(EfficientTraps, AColumnsOffsetCancels) {
  const Stream stream = MakeStream(shape_, 200, 14);
  Stream moved = stream;
  for (float& key : moved.keys) key += 64.0F;  // rounds keys to 2^-18
  const auto engine = MakeLinear(shape_, Config("efficient"));
  const std::vector<float> row = NormalNumbers(8, 15);
  const Answers one = Attend(*engine, At(*engine, stream, 200), row.data(), 1);
  const Answers other = Attend(*engine, At(*engine, moved, 200), row.data(), 1);
  for (std::size_t j = 0; j < 6; ++j) EXPECT_NEAR(one.outputs[j], other.outputs[j], 1e-5F);
}

// f32 sums stop counting where an increment is below half an ulp.
TEST_F(EfficientTraps, LongContextsDoNotDrift) {
  const LayerShape shape = {1, 1, 4, 2, 1.0F};
  const Stream stream = MakeStream(shape, 200'000, 16);
  const auto engine = MakeLinear(shape, Config("efficient"));
  const std::vector<float> row = NormalNumbers(4, 17);
  const Answers answers = Attend(*engine, At(*engine, stream, stream.tokens), row.data(), 1);
  const oracle::Answers truth =
      oracle::Efficient(stream.context(stream.tokens), {row.data(), {stream.tokens}});
  // Relative to the values, whose mean is about 0.
  for (std::size_t j = 0; j < 2; ++j) {
    EXPECT_NEAR(static_cast<double>(answers.outputs[j]), truth.outputs[j], 3e-7);
  }
}

TEST_F(EfficientTraps, AQueryThatOverflowsGetsZerosAndTheFlagAndOthersTheirAnswer) {
  shape_.scale = 100.0F;
  const auto engine = MakeLinear(shape_, Config("efficient"));
  const Stream stream = MakeStream(shape_, 100, 18);
  std::vector<float> rows = NormalNumbers(3 * 8, 19);
  const Answers expected = Attend(*engine, At(*engine, stream, 100), rows.data(), 3);
  rows[8 + 2] = 3e38F;
  const Answers answers = Attend(*engine, At(*engine, stream, 100), rows.data(), 3);
  EXPECT_EQ(answers.flags, (std::vector<std::uint8_t>{0, 4, 0}));
  for (std::size_t i = 0; i < 18; ++i) {
    EXPECT_EQ(answers.outputs[i], i / 6 == 1 ? 0.0F : expected.outputs[i]);
  }
  // Large numbers that do not overflow are ordinary ones: all weight is on the largest.
  rows[8 + 2] = 3e36F;
  EXPECT_EQ(Attend(*engine, At(*engine, stream, 100), rows.data(), 3).flags,
            (std::vector<std::uint8_t>{0, 0, 0}));
}

}  // namespace
}  // namespace attnd::engine::linear_test
