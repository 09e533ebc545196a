#include "engine/simd/leaf_sums.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kKeys = 64;
constexpr std::int64_t kStride = 3;

std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }
double Wide(float x) { return static_cast<double>(x); }

template <class T>
bool Same(T a, T b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

std::vector<double> RandomWeights(std::uint32_t seed) {
  const std::vector<float> values = RandomValues(kKeys, seed);
  return {values.begin(), values.end()};
}

void ExpectKeysAsPlainLoops(const std::vector<float>& keys_t, std::int64_t dim) {
  const std::vector<float> x = RandomValues(dim, 2);
  const std::vector<float> mean = RandomValues(dim * kStride, 3);
  const KeyColumns leaf = {keys_t.data(), dim, mean.data(), kStride};
  std::vector<double> products(kKeys + 1, -7.0);
  std::vector<double> squares(kKeys + 1, -7.0);
  KeyProducts(keys_t.data(), dim, x.data(), products.data());
  SquaredDistances(leaf, squares.data());
  for (std::int64_t j = 0; j < kKeys; ++j) {
    double product = 0.0;
    double square = 0.0;
    for (std::int64_t c = 0; c < dim; ++c) {
      const double key = Wide(keys_t[Size(c * kKeys + j)]);
      const double off = key - Wide(mean[Size(c * kStride)]);
      product = std::fma(Wide(x[Size(c)]), key, product);
      square = std::fma(off, off, square);
    }
    ASSERT_TRUE(Same(products[Size(j)], product)) << dim << " " << j;
    ASSERT_TRUE(Same(squares[Size(j)], square)) << dim << " " << j;
  }
  ASSERT_EQ(products.back(), -7.0);
  ASSERT_EQ(squares.back(), -7.0);
}

void ExpectCentredKeys(const std::vector<float>& keys_t, std::int64_t dim, std::int64_t width) {
  const std::vector<float> mean = RandomValues(dim * kStride, 4);
  const std::vector<float> roots = RandomValues(kKeys, 5);
  std::vector<float> keys(Size(kKeys * width) + 1, -7.0F);
  CentreKeys({keys_t.data(), dim, mean.data(), kStride}, roots.data(), width, keys.data());
  for (std::int64_t j = 0; j < kKeys; ++j) {
    for (std::int64_t c = 0; c < width; ++c) {
      const float key =
          c < dim ? roots[Size(j)] * (keys_t[Size(c * kKeys + j)] - mean[Size(c * kStride)]) : 0.0F;
      ASSERT_TRUE(Same(keys[Size(j * width + c)], key)) << dim << " " << j << " " << c;
    }
  }
  ASSERT_EQ(keys.back(), -7.0F);
}

TEST(LeafSums, OfKeysAreAsPlainLoopsInEveryDimension) {
  for (std::int64_t dim = 1; dim < 40; ++dim) {
    const std::vector<float> keys_t = RandomValues(dim * kKeys, 1);
    ExpectKeysAsPlainLoops(keys_t, dim);
    const std::int64_t rounded = (dim + 7) / 8 * 8;
    for (const std::int64_t width : {rounded, rounded + 8}) ExpectCentredKeys(keys_t, dim, width);
  }
}

TEST(LeafSums, OfKeysPassOnWhatIsNotFinite) {
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0U, 70U, 700U}) {
      std::vector<float> keys_t = RandomValues(11 * kKeys, 6);
      keys_t[at] = odd;
      ExpectKeysAsPlainLoops(keys_t, 11);
      ExpectCentredKeys(keys_t, 11, 16);
    }
  }
}

TEST(LeafSums, MeanKeysAreSumsOfWeightedKeys) {
  for (std::int64_t dim = 1; dim < 40; ++dim) {
    std::vector<float> keys_t = RandomValues(dim * kKeys, 7);
    const std::vector<double> weights = RandomWeights(8);
    keys_t.front() = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> mean(Size(dim * kStride), -7.0F);
    MeanKey(keys_t.data(), dim, weights.data(), mean.data(), kStride);
    EXPECT_TRUE(std::isnan(mean[0]));
    for (std::int64_t c = 1; c < dim; ++c) {
      double sum = 0.0;
      double size = 0.0;
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const double part = weights[Size(j)] * Wide(keys_t[Size(c * kKeys + j)]);
        sum += part;
        size += std::abs(part);
      }
      // A rounding to f32, and little more.
      EXPECT_NEAR(Wide(mean[Size(c * kStride)]), sum, std::abs(sum) * 6e-8 + size * 1e-14);
      EXPECT_EQ(mean[Size(c * kStride + 1)], -7.0F);
    }
  }
}

TEST(LeafSums, OfValuesAreAsPlainLoops) {
  for (const std::int64_t n : {16, 32, 48, 112}) {
    std::vector<float> values = RandomValues(kKeys * n, 9);
    values[Size(5 * n + 3)] = std::numeric_limits<float>::infinity();
    values[Size(9 * n + 10)] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<double> weights = RandomWeights(10);
    const std::vector<float> roots = RandomValues(kKeys, 11);
    std::vector<float> mean(Size(n) + 1, -7.0F);
    std::vector<float> centred(Size(kKeys * n) + 1, -7.0F);
    MeanValue(values.data(), n, weights.data(), mean.data());
    CentreValues(values.data(), n, mean.data(), roots.data(), centred.data());
    for (std::int64_t c = 0; c < n; ++c) {
      double sum = 0.0;
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const float value = values[Size(j * n + c)];
        sum = std::fma(weights[Size(j)], Wide(value), sum);
        const float off = roots[Size(j)] * (value - mean[Size(c)]);
        ASSERT_TRUE(Same(centred[Size(j * n + c)], off)) << n << " " << j << " " << c;
      }
      ASSERT_TRUE(Same(mean[Size(c)], static_cast<float>(sum))) << n << " " << c;
    }
    ASSERT_EQ(mean.back(), -7.0F);
    ASSERT_EQ(centred.back(), -7.0F);
  }
}

TEST(LeafSums, RowsAndSquaresAreThoseOfValidRows) {
  for (std::int64_t dim = 1; dim < 40; ++dim) {
    const std::int64_t stride = dim + 5;
    std::vector<float> rows = RandomValues(kKeys * stride, 12);
    rows[Size(6 * stride)] = std::numeric_limits<float>::quiet_NaN();  // not valid
    rows[Size(7 * stride + dim - 1)] = std::numeric_limits<float>::infinity();
    const std::vector<float> start = RandomValues(dim, 13);
    for (const std::uint64_t valid : {0ULL, 1ULL, 0x8000000000000081ULL, ~0x40ULL}) {
      std::vector<double> sums(start.begin(), start.end());
      std::vector<double> squares = sums;
      std::vector<double> expected_sums = sums;
      std::vector<double> expected_squares = sums;
      AddRowsAndSquares(rows.data(), stride, dim, valid, sums.data(), squares.data());
      for (std::int64_t j = 0; j < kKeys; ++j) {
        if (((valid >> j) & 1U) == 0) continue;
        for (std::int64_t c = 0; c < dim; ++c) {
          const double x = Wide(rows[Size(j * stride + c)]);
          expected_sums[Size(c)] += x;
          expected_squares[Size(c)] += x * x;
        }
      }
      ASSERT_EQ(sums, expected_sums) << dim;
      ASSERT_EQ(squares, expected_squares) << dim;
    }
  }
}

}  // namespace
}  // namespace attnd::engine
