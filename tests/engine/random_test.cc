// The specified random numbers: what they are, and that they are uniform and normal.
#include "engine/random.h"

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

TEST(Random, IsSplitMix64) {
  // The first numbers of the published generator for the seed 1234567.
  EXPECT_EQ(RandomAt(1234567, 0), 6457827717110365317ULL);
  EXPECT_EQ(RandomAt(1234567, 1), 3203168211198807973ULL);
  EXPECT_EQ(RandomAt(1234567, 2), 9817491932198370423ULL);
}

TEST(Random, StreamsOfOneSeedShareNoNumbers) {
  std::set<std::uint64_t> numbers;
  for (std::uint64_t stream = 0; stream < 100; ++stream) {
    for (std::uint64_t i = 0; i < 100; ++i) numbers.insert(RandomAt(StreamSeed(7, stream), i));
  }
  EXPECT_EQ(numbers.size(), 10000U);
}

TEST(Random, IndicesAreUniformAndInRange) {
  constexpr std::int64_t kCells = 10;
  constexpr std::int64_t kDraws = 100000;
  std::vector<double> counts(kCells, 0);
  for (std::int64_t i = 0; i < kDraws; ++i) {
    const std::int64_t cell = ToIndex(RandomAt(3, static_cast<std::uint64_t>(i)), kCells);
    ASSERT_GE(cell, 0);
    ASSERT_LT(cell, kCells);
    ++counts[static_cast<std::size_t>(cell)];
  }
  double chi_squared = 0;
  constexpr double kExpected = static_cast<double>(kDraws) / kCells;
  for (const double count : counts) {
    chi_squared += (count - kExpected) * (count - kExpected) / kExpected;
  }
  EXPECT_LT(chi_squared, 33.7);  // 9 degrees of freedom: above it once in 10,000
  EXPECT_EQ(ToIndex(~std::uint64_t{0}, 1), 0);
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  EXPECT_EQ(ToIndex(~std::uint64_t{0}, kHuge), kHuge - 1);
  EXPECT_EQ(ToIndex(std::uint64_t{1} << 63, kHuge), kHuge / 2);
}

TEST(Random, NormalNumbersHaveTheirMoments) {
  NormalGenerator normal(11);
  constexpr int kDraws = 200000;
  double first = 0;
  double second = 0;
  double fourth = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = normal.Next();
    first += x / kDraws;
    second += x * x / kDraws;
    fourth += x * x * x * x / kDraws;
  }
  // Four standard errors.
  EXPECT_NEAR(first, 0, 4 / std::sqrt(kDraws));
  EXPECT_NEAR(second, 1, 4 * std::sqrt(2.0 / kDraws));
  EXPECT_NEAR(fourth, 3, 4 * std::sqrt(96.0 / kDraws));
}

}  // namespace
}  // namespace attnd::engine
