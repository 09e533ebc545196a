#include "engine/simd/code_scan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "engine/simd/maps.h"
#include "engine/tensor.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kKeys = 64;

std::vector<std::int8_t> RandomCodes(std::int64_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::int8_t> codes(Size(count));
  for (std::int8_t& code : codes) {
    code = static_cast<std::int8_t>(static_cast<int>(generator() % 255) - 127);
  }
  return codes;
}

class CodeScanTest : public ::testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(Pairs, CodeScanTest, ::testing::Values(1, 2, 7, 32, 50, 64, 128, 512));

TEST_P(CodeScanTest, HasTheBitsOfTheReference) {
  const std::int64_t pairs = GetParam();
  const std::vector<std::int8_t> codes = RandomCodes(pairs * 2 * kKeys, 1);
  const std::vector<float> scales = RandomValues(kKeys, 2);
  std::mt19937 generator(3);
  std::vector<std::int16_t> query(Size(2 * pairs));
  const int most = static_cast<int>(std::min<std::int64_t>(32767, 8'454'660 / pairs));
  for (std::int16_t& x : query) {
    x = static_cast<std::int16_t>(static_cast<int>(generator() % Size(2 * most + 1)) - most);
  }
  std::vector<float> scores(kKeys);
  std::vector<float> expected(kKeys);
  ScanCodes(query.data(), pairs, codes.data(), scales.data(), 1e-5F, 0.25F, scores.data());
  RefScanCodes(query.data(), pairs, codes.data(), scales.data(), 1e-5F, 0.25F, expected.data());
  EXPECT_TRUE(SameBits(scores, expected));
}

TEST_P(CodeScanTest, ExtremeCodesDoNotOverflow) {
  const std::int64_t pairs = GetParam();
  const auto most = static_cast<std::int16_t>(
      std::min<std::int64_t>(32767, std::numeric_limits<std::int32_t>::max() / (254 * pairs)));
  for (const int sign : {-1, 1}) {
    const std::vector<std::int8_t> codes(Size(pairs * 2 * kKeys),
                                         static_cast<std::int8_t>(127 * sign));
    const std::vector<std::int16_t> query(Size(2 * pairs), most);
    const std::vector<float> scales(kKeys, 1.0F);
    std::vector<float> scores(kKeys);
    ScanCodes(query.data(), pairs, codes.data(), scales.data(), 1.0F, 0.0F, scores.data());
    const auto sum = static_cast<float>(127LL * sign * most * 2 * pairs);
    for (const float score : scores) EXPECT_EQ(score, sum);
  }
}

TEST(CodeSumTest, HasTheBitsOfTheReference) {
  std::mt19937 generator(13);
  for (const std::int64_t columns : {16, 48, 64, 112, 208}) {
    const std::vector<std::int8_t> codes = RandomCodes(kKeys * columns, 4);
    std::vector<std::int16_t> whole(kKeys);
    for (std::int16_t& x : whole) x = static_cast<std::int16_t>(generator() % 32768);
    std::vector<float> acc = RandomValues(columns, 6);
    std::vector<float> expected = acc;
    SumCodes(whole.data(), 1e-3F, codes.data(), columns, acc.data());
    RefSumCodes(whole.data(), 1e-3F, codes.data(), columns, expected.data());
    EXPECT_TRUE(SameBits(acc, expected)) << columns << " columns";
  }
  const std::vector<std::int8_t> codes(kKeys * 16, -127);
  const std::vector<std::int16_t> whole(kKeys, 32767);
  std::vector<float> acc(16, 0.0F);
  SumCodes(whole.data(), 1.0F, codes.data(), 16, acc.data());
  for (const float sum : acc) EXPECT_EQ(sum, -127.0F * 32767.0F * 64.0F);
}

TEST(CodeWeightsTest, AreTheNearestWholeNumbersOfAStep) {
  std::vector<float> weights = RandomValues(kKeys, 14);
  std::vector<float> steps = RandomValues(kKeys, 15);
  for (float& weight : weights) weight *= weight;
  for (float& step : steps) step *= step;
  std::vector<std::int16_t> whole(kKeys);
  const float step = CodeWeights(weights.data(), steps.data(), whole.data());
  float largest = 0;
  for (std::size_t j = 0; j < Size(kKeys); ++j) {
    largest = std::max(largest, weights[j] * steps[j]);
    const float inverse = 1 / step;
    EXPECT_EQ(static_cast<float>(whole[j]), std::nearbyint(weights[j] * steps[j] * inverse));
  }
  EXPECT_EQ(step, largest / 32767);
  const std::vector<float> zeros(kKeys, 0.0F);
  EXPECT_EQ(CodeWeights(zeros.data(), steps.data(), whole.data()), 0.0F);
  EXPECT_EQ(whole, std::vector<std::int16_t>(kKeys, 0));
}

float SumOfHalves(std::array<float, 16> lanes) {
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// In 16 lanes on every instruction set.
TEST(WeighScoresTest, HasTheBitsOfSixteenLanes) {
  std::vector<float> scores = RandomValues(kKeys, 7, 3.0F);
  scores[5] = -std::numeric_limits<float>::infinity();
  scores[9] = -200.0F;
  const std::vector<float> errors = RandomValues(kKeys, 8);
  const std::vector<float> sizes = RandomValues(kKeys, 12);
  const float reference = 12.5F;
  std::vector<float> weights = scores;
  for (float& weight : weights) weight -= reference;
  Exp(weights.data(), weights.data(), kKeys);
  std::array<float, 16> sum = {};
  std::array<float, 16> error = {};
  std::array<float, 16> square = {};
  for (std::size_t j = 0; j < Size(kKeys); ++j) {
    sum[j % 16] += weights[j];
    error[j % 16] = std::fma(weights[j], errors[j], error[j % 16]);
    square[j % 16] += weights[j] * sizes[j] * sizes[j];
  }
  const WeightSums sums = WeighScores(scores.data(), reference, errors.data(), sizes.data());
  EXPECT_TRUE(SameBits(scores, weights));
  EXPECT_EQ(scores[5], 0.0F);
  EXPECT_EQ(scores[9], 0.0F);
  EXPECT_EQ(sums.sum, SumOfHalves(sum));
  EXPECT_EQ(sums.errors, SumOfHalves(error));
  EXPECT_EQ(sums.squares, SumOfHalves(square));
  const WeightSums again = SumWeights(weights.data(), errors.data(), sizes.data());
  EXPECT_EQ(again.sum, sums.sum);
  EXPECT_EQ(again.errors, sums.errors);
  EXPECT_EQ(again.squares, sums.squares);
  const float limit = weights[3] * sizes[3] * sizes[3];
  std::uint64_t above = 0;
  for (std::size_t j = 0; j < Size(kKeys); ++j) {
    if (weights[j] * sizes[j] * sizes[j] > limit) above |= std::uint64_t{1} << j;
  }
  EXPECT_EQ(SquaresAbove(weights.data(), sizes.data(), limit), above);
}

TEST(ScoresAboveTest, OneBitPerScoreAndNoneForEqualOnes) {
  std::vector<float> scores = RandomValues(kKeys, 9);
  scores[17] = 0.5F;
  scores[63] = 40.0F;
  scores[0] = -std::numeric_limits<float>::infinity();
  std::uint64_t expected = 0;
  for (std::size_t j = 0; j < Size(kKeys); ++j) {
    if (scores[j] > 0.5F) expected |= std::uint64_t{1} << j;
  }
  EXPECT_EQ(ScoresAbove(scores.data(), 0.5F), expected);
  EXPECT_EQ(ScoresAbove(scores.data(), scores[0]), ~std::uint64_t{1});
  EXPECT_EQ(MaxScore(scores.data()), 40.0F);
}

TEST(DotRowsTest, HasTheBitsOfSixteenLanes) {
  for (const std::int64_t n : {1, 15, 16, 17, 100, 128, 1000}) {
    const std::vector<float> x = RandomValues(n, 10);
    const std::vector<float> y = RandomValues(n, 11);
    std::array<float, 16> lanes = {};
    for (std::size_t i = 0; i < Size(RoundUp(n, 16)); ++i) {
      const bool there = i < x.size();
      lanes[i % 16] = std::fma(there ? x[i] : 0.0F, there ? y[i] : 0.0F, lanes[i % 16]);
    }
    EXPECT_EQ(DotRows(x.data(), y.data(), n), SumOfHalves(lanes)) << n;
  }
}

}  // namespace
}  // namespace attnd::engine
