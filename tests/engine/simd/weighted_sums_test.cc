#include "engine/simd/weighted_sums.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr double kWeight = 0.3;
constexpr double kSlope = -1.7;

bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// One element more than n, which is not to be touched.
std::vector<double> Wide(std::int64_t n, std::uint32_t seed) {
  const std::vector<float> values = RandomValues(n + 1, seed, 100.0F);
  std::vector<double> wide;
  for (const float value : values) wide.push_back(static_cast<double>(value) / 3.0);
  return wide;
}

void ExpectAsPlainLoops(const std::vector<float>& x, const std::vector<float>& y) {
  const auto n = static_cast<std::int64_t>(x.size());
  const std::vector<double> start = Wide(n, 3);
  std::vector<double> x64;
  for (const float value : x) x64.push_back(static_cast<double>(value) / 3.0);
  std::vector<double> one = start;
  std::vector<double> two = start;
  std::vector<double> scaled = start;
  AddWeighted(x64.data(), kWeight, one.data(), n);
  AddWeighted(x.data(), kSlope, y.data(), kWeight, two.data(), n);
  ScaleSums(kWeight, scaled.data(), n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(Same(one[i], std::fma(kWeight, x64[i], start[i]))) << n << " " << i;
    const double row = std::fma(kSlope, static_cast<double>(y[i]), static_cast<double>(x[i]));
    ASSERT_TRUE(Same(two[i], std::fma(kWeight, row, start[i]))) << n << " " << i;
    ASSERT_TRUE(Same(scaled[i], kWeight * start[i])) << n << " " << i;
  }
  ASSERT_EQ(one.back(), start.back());
  ASSERT_EQ(two.back(), start.back());
  ASSERT_EQ(scaled.back(), start.back());
}

TEST(WeightedSums, AreAsPlainLoopsAtEveryLength) {
  for (std::int64_t n = 0; n < 40; ++n) ExpectAsPlainLoops(RandomValues(n, 1), RandomValues(n, 2));
}

TEST(WeightedSums, PassOnWhatIsNotFinite) {
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0U, 7U, 10U}) {
      std::vector<float> x = RandomValues(11, 4);
      x[at] = odd;
      ExpectAsPlainLoops(x, RandomValues(11, 5));
      ExpectAsPlainLoops(RandomValues(11, 5), x);
    }
  }
}

TEST(WeightedSums, SquaredDifferencesAreSums) {
  for (std::int64_t n = 0; n < 40; ++n) {
    std::vector<double> x = Wide(n, 6);
    const std::vector<double> y = Wide(n, 7);
    const std::vector<double> z = Wide(n, 8);
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const double off = 0.25 * (x[at] + kWeight * y[at]) - z[at];
      sum += off * off;
    }
    EXPECT_NEAR(SquaredDifference(x.data(), kWeight, y.data(), 0.25, z.data(), n), sum,
                1e-13 * sum);
    if (n == 0) continue;
    x[static_cast<std::size_t>(n) - 1] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(SquaredDifference(x.data(), kWeight, y.data(), 0.25, z.data(), n)));
  }
}

}  // namespace
}  // namespace attnd::engine
