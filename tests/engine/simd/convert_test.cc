#include "engine/simd/convert.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

// A 16-bit pattern's value from its fields. `exponent_bits` 5 is binary16, 8 is bfloat16.
double RefValue(std::uint16_t bits, int exponent_bits) {
  const int fraction_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const double fraction = std::ldexp(bits & ((1 << fraction_bits) - 1), -fraction_bits);
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias)
                               : std::ldexp(1 + fraction, exponent - bias));
}

struct Format {
  int exponent_bits;
  void (*widen)(const std::uint16_t*, float*, std::int64_t);
  bool (*narrow)(const float*, std::uint16_t*, std::int64_t);
};

class Convert : public ::testing::TestWithParam<Format> {};

INSTANTIATE_TEST_SUITE_P(Formats, Convert,
                         ::testing::Values(Format{5, F16ToF32, F32ToF16},
                                           Format{8, Bf16ToF32, F32ToBf16}));

TEST_P(Convert, EveryPatternWidensExactlyAndComesBack) {
  std::vector<std::uint16_t> all(0x10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  GetParam().widen(all.data(), wide.data(), 0x10000);
  std::vector<std::uint16_t> back(all.size());
  EXPECT_TRUE(GetParam().narrow(wide.data(), back.data(), 0x10000)) << "an infinity is no overflow";
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double truth = RefValue(all[i], GetParam().exponent_bits);
    if (std::isnan(truth)) {
      ASSERT_TRUE(std::isnan(wide[i])) << i;
      ASSERT_TRUE(std::isnan(RefValue(back[i], GetParam().exponent_bits))) << i;
    } else {
      ASSERT_EQ(static_cast<double>(wide[i]), truth) << i;
      ASSERT_EQ(std::signbit(wide[i]), std::signbit(truth)) << i;
      ASSERT_EQ(back[i], all[i]);
    }
  }
}

TEST_P(Convert, NarrowsToNearestEven) {
  // Between each finite positive pattern and its successor: the middle, and the f32 neighbours of
  // the middle.
  const int bits = GetParam().exponent_bits;
  const auto largest = static_cast<std::uint16_t>((((1 << bits) - 1) << (15 - bits)) - 1);
  std::vector<float> x;
  std::vector<std::uint16_t> expected;
  for (std::uint16_t low = 0; low < largest; ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const auto middle = static_cast<float>((RefValue(low, bits) + RefValue(high, bits)) / 2);
    // bfloat16's smallest denormals have no f32 between them but the middle; both neighbours still
    // are exact floats.
    const std::uint16_t even = low % 2 == 0 ? low : high;
    for (const float sign : {1.0F, -1.0F}) {
      const auto with_sign = [sign](std::uint16_t p) {
        return sign > 0 ? p : static_cast<std::uint16_t>(p | 0x8000U);
      };
      x.insert(x.end(), {sign * middle, sign * std::nextafter(middle, 0.0F),
                         sign * std::nextafter(middle, std::numeric_limits<float>::max())});
      expected.insert(expected.end(), {with_sign(even), with_sign(low), with_sign(high)});
    }
  }
  std::vector<std::uint16_t> y(x.size());
  EXPECT_TRUE(GetParam().narrow(x.data(), y.data(), static_cast<std::int64_t>(x.size())));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], expected[i]) << x[i];
}

TEST_P(Convert, TellsOverflowAtEveryPlace) {
  const float limit = GetParam().exponent_bits == 5 ? 65520.0F : 0x1.FFp127F;
  const auto infinity = static_cast<std::uint16_t>(((1 << GetParam().exponent_bits) - 1)
                                                   << (15 - GetParam().exponent_bits));
  for (std::size_t n = 1; n < 40; ++n) {
    for (std::size_t i = 0; i < n; ++i) {
      std::vector<float> x(n, 1.0F);
      std::vector<std::uint16_t> y(n);
      x[i] = std::nextafter(limit, 0.0F);
      ASSERT_TRUE(GetParam().narrow(x.data(), y.data(), static_cast<std::int64_t>(n)));
      ASSERT_EQ(y[i], infinity - 1);
      x[i] = -limit;
      ASSERT_FALSE(GetParam().narrow(x.data(), y.data(), static_cast<std::int64_t>(n)));
      ASSERT_EQ(y[i], infinity | 0x8000U);
    }
  }
}

TEST_P(Convert, NansStayNans) {
  // Patterns that rounding alone would turn into infinity or a negative zero.
  const std::vector<float> x = {
      std::bit_cast<float>(0x7F800001U), std::bit_cast<float>(0x7FFFFFFFU),
      std::bit_cast<float>(0xFFFFFFFFU), std::bit_cast<float>(0xFF808000U)};
  std::vector<std::uint16_t> y(x.size());
  EXPECT_TRUE(GetParam().narrow(x.data(), y.data(), 4));
  for (const std::uint16_t bits : y)
    EXPECT_TRUE(std::isnan(RefValue(bits, GetParam().exponent_bits))) << bits;
}

TEST_P(Convert, WritesOnlyItsElements) {
  const std::vector<float> x = RandomValues(40, 1);
  for (std::int64_t n = 0; n < 40; ++n) {
    std::vector<std::uint16_t> y(41, 0xABCD);
    GetParam().narrow(x.data(), y.data(), n);
    std::vector<float> wide(41, -7.0F);
    GetParam().widen(y.data(), wide.data(), n);
    ASSERT_EQ(y[static_cast<std::size_t>(n)], 0xABCD);
    ASSERT_EQ(wide[static_cast<std::size_t>(n)], -7.0F);
    if (n > 0) {
      ASSERT_EQ(static_cast<double>(wide[static_cast<std::size_t>(n - 1)]),
                RefValue(y[static_cast<std::size_t>(n - 1)], GetParam().exponent_bits));
    }
  }
}

}  // namespace
}  // namespace attnd::engine
