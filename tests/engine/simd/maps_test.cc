#include "engine/simd/maps.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

// |value - truth| in units of the last place of the truth rounded to f32.
double UlpError(float value, double truth) {
  const auto rounded = static_cast<float>(truth);
  const double ulp =
      static_cast<double>(std::nextafter(rounded, kInf)) - static_cast<double>(rounded);
  return std::abs(static_cast<double>(value) - truth) / ulp;
}

using Loop = void (*)(const float* x, float* y, std::int64_t n);

void ExpectWithinTwoUlpOfExp(Loop loop) {
  // Every 997th float of [-87.33, -2^-30], and with it every binade.
  std::vector<float> x;
  for (std::uint32_t bits = 0x30800000U; bits <= std::bit_cast<std::uint32_t>(87.33F);
       bits += 997) {
    x.push_back(-std::bit_cast<float>(bits));
  }
  std::vector<float> y(x.size());
  loop(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    worst = std::max(worst, UlpError(y[i], std::exp(static_cast<double>(x[i]))));
  }
  EXPECT_LE(worst, 2.0);
  EXPECT_GT(worst, 0.4) << "more exact than rounding allows: nothing was measured";
}

TEST(Exp, IsWithinTwoUlpDownTo87) { ExpectWithinTwoUlpOfExp(Exp); }

TEST(Exp, IsWithinTwoUlpUpTo87) {
  std::vector<float> x;
  for (std::uint32_t bits = 0x30800000U; bits <= std::bit_cast<std::uint32_t>(87.0F); bits += 997) {
    x.push_back(std::bit_cast<float>(bits));
  }
  std::vector<float> y(x.size());
  Exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(UlpError(y[i], std::exp(static_cast<double>(x[i]))), 2.0) << x[i];
  }
}

TEST(Exp, KeepsTheEdges) {
  const std::vector<float> x = {0.0F, -0.0F, -1e-30F, -87.4F, -1e30F, -kInf, kNan};
  const std::vector<float> expected = {1.0F, 1.0F, 1.0F, 0.0F, 0.0F, 0.0F};
  std::vector<float> y(x.size());
  Exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(y[i], expected[i]) << x[i];
  EXPECT_TRUE(std::isnan(y.back()));
}

// They are part of the bits of exact attention's answers.
TEST(Exp, BitsDoNotChange) {
  const std::vector<float> x = {-1e-6F, -0.01F, -0.3F, -0.7F, -1.0F, -2.5F, -10.0F, -33.3F, -87.0F};
  std::vector<float> y(x.size());
  Exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  std::vector<std::uint32_t> bits;
  for (const float value : y) bits.push_back(std::bit_cast<std::uint32_t>(value));
  EXPECT_EQ(bits,
            (std::vector<std::uint32_t>{1065353199, 1065186280, 1061004868, 1056850030, 1052531379,
                                        1034427439, 943614927, 662221546, 11744903}));
}

TEST(EluPlusOne, IsWithinTwoUlpDownTo87) { ExpectWithinTwoUlpOfExp(EluPlusOne); }

TEST(EluPlusOne, KeepsTheEdges) {
  const std::vector<float> x = {0.0F,   -0.0F,  1.0F,  3e38F, kInf,
                                -87.4F, -1e30F, -kInf, kNan,  1e-30F};
  const std::vector<float> expected = {1.0F, 1.0F, 2.0F, 3e38F, kInf, 0.0F, 0.0F, 0.0F, kNan, 1.0F};
  std::vector<float> y(x.size());
  EluPlusOne(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else {
      EXPECT_EQ(y[i], expected[i]) << x[i];
    }
  }
}

TEST(Maps, ReluAddsEpsAfterClamping) {
  const std::vector<float> x = {-2.0F, -0.0F, 0.0F, 3.0F, kNan, -kInf};
  std::vector<float> y(x.size());
  Relu(x.data(), 0.5F, y.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(y[0], 0.5F);
  EXPECT_EQ(y[1], 0.5F);
  EXPECT_EQ(y[2], 0.5F);
  EXPECT_EQ(y[3], 3.5F);
  EXPECT_TRUE(std::isnan(y[4])) << "a NaN must not become a feature";
  EXPECT_EQ(y[5], 0.5F);
}

TEST(Maps, SquaredReluSquaresThePositive) {
  const std::vector<float> x = {-2.0F, 3.0F, 2e19F, kNan};
  std::vector<float> y(x.size());
  SquaredRelu(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(y[0], 0.0F);
  EXPECT_EQ(y[1], 9.0F);
  EXPECT_EQ(y[2], kInf);
  EXPECT_TRUE(std::isnan(y[3]));
}

// Every length around a vector's, in place and not, must give each element the bits it has alone.
TEST(Maps, ElementsDoNotDependOnLengthOrPlace) {
  const auto apply = [](int map, const float* x, float* y, std::int64_t n) {
    if (map == 0) EluPlusOne(x, y, n);
    if (map == 1) Relu(x, 1e-3F, y, n);
    if (map == 2) SquaredRelu(x, y, n);
    if (map == 3) ScaleRow(x, 0.3F, y, n);
    if (map == 4) Exp(x, y, n);
  };
  for (int map = 0; map < 5; ++map) {
    std::vector<float> x = RandomValues(70, 1);
    for (float& value : x) value = map == 4 ? -std::abs(value) : value;
    std::vector<float> alone(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) apply(map, &x[i], &alone[i], 1);
    for (std::int64_t n = 0; n < 70; ++n) {
      const auto size = static_cast<std::size_t>(n);
      std::vector<float> y(x.size(), -7.0F);
      apply(map, x.data() + 1, y.data(), n - (n > 0));
      std::vector<float> in_place = x;
      apply(map, in_place.data(), in_place.data(), n);
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(in_place[i], i < size ? alone[i] : x[i]) << map << " " << n << " " << i;
        ASSERT_EQ(y[i], i + 1 < size ? alone[i + 1] : -7.0F) << map << " " << n << " " << i;
      }
    }
  }
}

TEST(Maps, ScaleRowMultiplies) {
  const std::vector<float> x = RandomValues(33, 2);
  std::vector<float> y(x.size());
  ScaleRow(x.data(), 0.125F, y.data(), 33);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], 0.125F * x[i]);
}

TEST(Maps, ScaleByExpIsAProductWithExp) {
  for (std::int64_t n = 0; n < 40; ++n) {
    const std::vector<float> x = RandomValues(40, 3);
    std::vector<float> log = RandomValues(40, 4);
    for (float& value : log) value = -10.0F * std::abs(value);
    std::vector<float> factors(log.size());
    Exp(log.data(), factors.data(), 40);
    std::vector<float> y(x.size(), -7.0F);
    ScaleByExp(x.data(), log.data(), y.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i], i < static_cast<std::size_t>(n) ? x[i] * factors[i] : -7.0F) << n;
    }
  }
}

TEST(Maps, AddRowAddsUpToItsEnd) {
  for (std::int64_t n = 0; n < 40; ++n) {
    const std::vector<float> x = RandomValues(40, 5);
    const std::vector<float> before = RandomValues(40, 6);
    std::vector<float> sum = before;
    AddRow(x.data(), sum.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(sum[i], i < static_cast<std::size_t>(n) ? before[i] + x[i] : before[i]) << n;
    }
  }
}

TEST(Maps, PairProductsAreThoseOfEveryPair) {
  const std::vector<float> x = RandomValues(70, 3);
  for (std::size_t n = 0; n < 70; ++n) {
    std::vector<float> y(n * (n + 1) / 2 + 1, -7.0F);
    PairProducts(x.data(), static_cast<std::int64_t>(n), y.data());
    std::size_t at = 0;
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = a; b < n; ++b) ASSERT_EQ(y[at++], x[a] * x[b]) << n << " " << a;
    }
    ASSERT_EQ(y[at], -7.0F) << n;
  }
}

TEST(SumOf, AddsInSixteenLanesAndThenInHalves) {
  const std::vector<float> x = RandomValues(100, 9);
  for (std::int64_t n = 0; n <= 100; ++n) {
    float lanes[16] = {};
    for (std::int64_t i = 0; i < n; ++i) lanes[i % 16] += x[static_cast<std::size_t>(i)];
    for (int half = 8; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(SumOf(x.data(), n)),
              std::bit_cast<std::uint32_t>(lanes[0]))
        << n;
  }
  const std::vector<float> with_nan = {1.0F, kNan, 2.0F};
  EXPECT_TRUE(std::isnan(SumOf(with_nan.data(), 3)));
}

TEST(MaxAbs, FindsTheLargestAtEveryPlace) {
  for (std::size_t n = 1; n < 70; ++n) {
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> x(n, 0.5F);
      x[i] = -3.0F;
      ASSERT_EQ(MaxAbs(x.data(), static_cast<std::int64_t>(n)), 3.0F);
      ASSERT_TRUE(AllFinite(x.data(), static_cast<std::int64_t>(n)));
      x[i] = kInf;
      ASSERT_EQ(MaxAbs(x.data(), static_cast<std::int64_t>(n)), kInf);
      ASSERT_FALSE(AllFinite(x.data(), static_cast<std::int64_t>(n)));
      x[i] = -kNan;
      x[0] = i == 0 ? x[0] : kInf;
      ASSERT_TRUE(std::isnan(MaxAbs(x.data(), static_cast<std::int64_t>(n))));
      ASSERT_FALSE(AllFinite(x.data(), static_cast<std::int64_t>(n)));
    }
  }
  EXPECT_EQ(MaxAbs(nullptr, 0), 0.0F);
  EXPECT_TRUE(AllFinite(nullptr, 0));
}

}  // namespace
}  // namespace attnd::engine
