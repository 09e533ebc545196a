#include "engine/simd/totals.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

TEST(Totals, AddAndRoundAtEveryLength) {
  for (std::int64_t n = 0; n < 40; ++n) {
    const auto size = static_cast<std::size_t>(n);
    const std::vector<float> block = RandomValues(n, 1);
    const std::vector<float> start = RandomValues(n + 1, 2, 1e6F);
    std::vector<double> totals(start.begin(), start.end());
    AddToTotals(block.data(), 1.0, totals.data(), n);
    std::vector<float> out(size + 1, -7.0F);
    const float largest = RoundTotals(totals.data(), out.data(), n);
    float expected_largest = 0.0F;
    for (std::size_t i = 0; i < size; ++i) {
      const double total = static_cast<double>(start[i]) + static_cast<double>(block[i]);
      ASSERT_EQ(totals[i], total);
      ASSERT_EQ(out[i], static_cast<float>(total));
      expected_largest = std::max(expected_largest, std::abs(out[i]));
    }
    ASSERT_EQ(largest, expected_largest);
    ASSERT_EQ(totals[size], static_cast<double>(start[size]));
    ASSERT_EQ(out[size], -7.0F);
  }
}

TEST(Totals, SumsAtEveryLengthAndTypeAreThoseOfTheirParts) {
  for (std::int64_t n = 0; n < 40; ++n) {
    const std::vector<float> a = RandomValues(n, 3);
    const std::vector<float> b = RandomValues(n, 4, 1e6F);
    const std::vector<double> a64(a.begin(), a.end());
    const std::vector<double> b64(b.begin(), b.end());
    std::vector<double> of_blocks(static_cast<std::size_t>(n) + 1, -7.0);
    std::vector<double> of_totals = of_blocks;
    SumTotals(a.data(), 0.5, b.data(), 1.0, of_blocks.data(), n);
    SumTotals(a64.data(), 0.5, b64.data(), 1.0, of_totals.data(), n);
    std::vector<double> added = b64;
    AddToTotals(a64.data(), 0.5, added.data(), n);
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(of_blocks[i], 0.5 * a64[i] + b64[i]);
      ASSERT_EQ(of_totals[i], of_blocks[i]);
      ASSERT_EQ(added[i], of_blocks[i]);
    }
    ASSERT_EQ(of_blocks.back(), -7.0);
    ASSERT_EQ(of_totals.back(), -7.0);
  }
}

TEST(Totals, SmallAddendsAreNotLostInALargeTotal) {
  // In f32 the total would stay 2^24.
  double total = 0x1p24;
  const float one = 1.0F;
  for (int i = 0; i < 1000; ++i) AddToTotals(&one, 1.0, &total, 1);
  EXPECT_EQ(total, 0x1p24 + 1000);
}

TEST(Totals, RoundingTellsWhatIsNotFinite) {
  for (const std::size_t at : {std::size_t{0}, std::size_t{8}, std::size_t{16}}) {
    std::vector<double> totals(17, 1.0);
    std::vector<float> out(17);
    totals[at] = -1e39;
    EXPECT_EQ(RoundTotals(totals.data(), out.data(), 17), std::numeric_limits<float>::infinity());
    totals[at] = std::nan("");
    EXPECT_TRUE(std::isnan(RoundTotals(totals.data(), out.data(), 17)));
  }
}

}  // namespace
}  // namespace attnd::engine
