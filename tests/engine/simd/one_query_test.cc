#include "engine/simd/one_query.h"

#include <cstdint>
#include <vector>

#include "engine/gemm.h"
#include "engine/ref_gemm.h"
#include "engine/simd/convert.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kTokens = 64;

std::vector<std::uint16_t> ToBf16(const std::vector<float>& x) {
  std::vector<std::uint16_t> bits(x.size());
  F32ToBf16(x.data(), bits.data(), static_cast<std::int64_t>(x.size()));
  return bits;
}

std::vector<float> Widened(const std::vector<std::uint16_t>& x) {
  std::vector<float> wide(x.size());
  Bf16ToF32(x.data(), wide.data(), static_cast<std::int64_t>(x.size()));
  return wide;
}

class ScoresOneQueryTest : public ::testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(KeyDims, ScoresOneQueryTest,
                         ::testing::Values(1, 3, 16, 64, 80, 128, 200, 256, 257, 512, 700));

TEST_P(ScoresOneQueryTest, HasTheBitsOfTheProduct) {
  const std::int64_t d = GetParam();
  const std::vector<float> q = RandomValues(4 * d, 1);
  const std::vector<float> keys_t = RandomValues(d * kTokens, 2);
  std::vector<float> product(4 * kTokens);
  RefGemmNN(4, kTokens, d, q.data(), d, keys_t.data(), kTokens, false, product.data(), kTokens);
  std::vector<float> by_door(4 * kTokens);
  GemmNN(4, kTokens, d, q.data(), d, keys_t.data(), kTokens, false, by_door.data(), kTokens);
  ASSERT_TRUE(SameBits(by_door, product));
  for (const float* prefetch : {static_cast<const float*>(nullptr), keys_t.data()}) {
    std::vector<float> scores(4 * kTokens, -7.0F);
    for (std::int64_t i = 0; i < 4; ++i) {
      ScoresOneQuery(q.data() + i * d, d, keys_t.data(), scores.data() + i * kTokens, prefetch);
    }
    EXPECT_TRUE(SameBits(scores, product));
  }
}

TEST_P(ScoresOneQueryTest, Bf16KeysGiveTheBitsOfTheirF32Values) {
  const std::int64_t d = GetParam();
  const std::vector<float> q = RandomValues(d, 1);
  const std::vector<std::uint16_t> keys_t = ToBf16(RandomValues(d * kTokens, 2));
  std::vector<float> scores(kTokens), expected(kTokens);
  ScoresOneQuery(q.data(), d, keys_t.data(), scores.data(), keys_t.data());
  ScoresOneQuery(q.data(), d, Widened(keys_t).data(), expected.data(), nullptr);
  EXPECT_TRUE(SameBits(scores, expected));
}

class WeightedSumOneQueryTest : public ::testing::TestWithParam<std::int64_t> {};

INSTANTIATE_TEST_SUITE_P(ValueDims, WeightedSumOneQueryTest,
                         ::testing::Values(16, 32, 48, 64, 80, 96, 112, 128, 144, 256, 528));

TEST_P(WeightedSumOneQueryTest, HasTheBitsOfTheAccumulatingProduct) {
  const std::int64_t width = GetParam();
  const std::vector<float> weights = RandomValues(4 * kTokens, 1);
  const std::vector<float> values = RandomValues(kTokens * width, 2);
  const std::vector<float> start = RandomValues(4 * width, 3);
  std::vector<float> product = start;
  GemmNN(4, width, kTokens, weights.data(), kTokens, values.data(), width, true, product.data(),
         width);
  for (const float* prefetch : {static_cast<const float*>(nullptr), values.data()}) {
    std::vector<float> acc = start;
    for (std::int64_t i = 0; i < 4; ++i) {
      WeightedSumOneQuery(weights.data() + i * kTokens, values.data(), width,
                          acc.data() + i * width, prefetch);
    }
    EXPECT_TRUE(SameBits(acc, product));
  }
}

TEST_P(WeightedSumOneQueryTest, Bf16ValuesGiveTheBitsOfTheirF32Values) {
  const std::int64_t width = GetParam();
  const std::vector<float> weights = RandomValues(kTokens, 1);
  const std::vector<std::uint16_t> values = ToBf16(RandomValues(kTokens * width, 2));
  std::vector<float> acc = RandomValues(width, 3);
  std::vector<float> expected = acc;
  WeightedSumOneQuery(weights.data(), values.data(), width, acc.data(), values.data());
  WeightedSumOneQuery(weights.data(), Widened(values).data(), width, expected.data(), nullptr);
  EXPECT_TRUE(SameBits(acc, expected));
}

}  // namespace
}  // namespace attnd::engine
