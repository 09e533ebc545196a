#include "engine/simd/nearest.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(NearestTest, DotsAreSums) {
  for (std::int64_t n = 0; n < 70; ++n) {
    const std::vector<float> a = RandomValues(n, 1);
    const std::vector<float> b = RandomValues(n, 2);
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    EXPECT_NEAR(static_cast<double>(Dot(a.data(), b.data(), n)), sum, 1e-5) << n;
  }
}

TEST(NearestTest, SquaredDistancesAreSums) {
  for (std::int64_t n = 0; n < 70; ++n) {
    const std::vector<float> a = RandomValues(n, 5);
    const std::vector<float> b = RandomValues(n, 6);
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      const double off = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      sum += off * off;
    }
    EXPECT_NEAR(static_cast<double>(SquaredDistance(a.data(), b.data(), n)), sum, 1e-5 * (1 + sum))
        << n;
  }
}

TEST(NearestTest, FindsTheLargestAndItsMargin) {
  for (std::int64_t n = 1; n < 70; ++n) {
    const std::vector<float> x = RandomValues(n, 3);
    const std::vector<float> bias = RandomValues(n, 4);
    std::vector<float> sums;
    for (std::size_t i = 0; i < x.size(); ++i) sums.push_back(x[i] + bias[i]);
    const auto largest = std::max_element(sums.begin(), sums.end());
    const std::int64_t index = largest - sums.begin();
    std::vector<float> sorted = sums;
    std::sort(sorted.rbegin(), sorted.rend());
    EXPECT_EQ(IndexOfLargest(x.data(), bias.data(), n), index) << n;
    const Nearest nearest = NearestOf(x.data(), bias.data(), n);
    EXPECT_EQ(nearest.index, index) << n;
    EXPECT_EQ(nearest.margin, n == 1 ? 0.0F : sorted[0] - sorted[1]) << n;
  }
}

TEST(NearestTest, OfEqualOnesTheFirstAndNoneBelowInfinity) {
  const std::vector<float> x(20, 1.0F);
  std::vector<float> bias(20, -kInfinity);
  EXPECT_EQ(IndexOfLargest(x.data(), bias.data(), 20), 0);
  bias[7] = bias[13] = bias[19] = 0.0F;
  EXPECT_EQ(IndexOfLargest(x.data(), bias.data(), 20), 7);
  EXPECT_EQ(NearestOf(x.data(), bias.data(), 20).margin, 0.0F);
}

}  // namespace
}  // namespace attnd::engine
