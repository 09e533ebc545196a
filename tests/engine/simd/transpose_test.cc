#include "engine/simd/transpose.h"

#include <cstdint>
#include <vector>

#include "engine/simd/convert.h"
#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kTokens = 64;

std::uint16_t ToBf16(float x) {
  std::uint16_t bits = 0;
  F32ToBf16(&x, &bits, 1);
  return bits;
}

TEST(TransposeKeys, WritesItsColumnsOnly) {
  for (const std::int64_t d : {1, 3, 8, 16, 64, 80, 100}) {
    const std::int64_t stride = 2 * d + 1;
    const std::vector<float> keys = RandomValues(kTokens * stride, 1);
    for (const std::int64_t count : {0, 1, 7, 8, 16, 17, 32, 63, 64}) {
      std::vector<float> keys_t(static_cast<std::size_t>(d * kTokens), -7.0F);
      std::vector<std::uint16_t> keys_t16(keys_t.size(), 0xABCD);
      TransposeKeys(keys.data(), stride, count, d, keys_t.data());
      TransposeKeys(keys.data(), stride, count, d, keys_t16.data());
      for (std::int64_t p = 0; p < d; ++p) {
        for (std::int64_t j = 0; j < kTokens; ++j) {
          const auto at = static_cast<std::size_t>(p * kTokens + j);
          const float key = j < count ? keys[static_cast<std::size_t>(j * stride + p)] : -7.0F;
          ASSERT_EQ(keys_t[at], key) << d << " " << count << " " << p << " " << j;
          ASSERT_EQ(keys_t16[at], j < count ? ToBf16(key) : 0xABCD);
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnd::engine
