#include "engine/simd/transpose.h"

#include <algorithm>
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

TEST(TransposeKeys, ListedRowsBecomeColumnsAndColumnsListedRows) {
  constexpr std::int64_t kRows = 70;
  std::vector<std::int32_t> order;
  for (std::int32_t j = 0; j < kTokens; ++j) order.push_back((j * 17 + 3) % kRows);
  for (const std::int64_t d : {1, 3, 7, 8, 9, 16, 63, 64, 100}) {
    const std::vector<float> rows = RandomValues(kRows * d, 2);
    for (const std::int64_t count : {0, 1, 7, 8, 16, 17, 63, 64}) {
      const RowList list = {rows.data(), d, order.data(), count};
      std::vector<float> keys_t(static_cast<std::size_t>(d * kTokens), -7.0F);
      TransposeRows(list, keys_t.data());
      std::vector<std::int32_t> places(kTokens, -1);
      std::copy_n(order.begin(), count, places.begin());
      std::vector<float> back(rows.size(), -8.0F);
      UntransposeKeys(keys_t.data(), d, places.data(), back.data());
      std::vector<float> expected(rows.size(), -8.0F);
      for (std::int64_t j = 0; j < kTokens; ++j) {
        for (std::int64_t p = 0; p < d; ++p) {
          const float key = j < count ? list.row(j)[p] : -7.0F;
          ASSERT_EQ(keys_t[static_cast<std::size_t>(p * kTokens + j)], key) << d << " " << j;
          if (j < count)
            expected[static_cast<std::size_t>(order[static_cast<std::size_t>(j)] * d + p)] = key;
        }
      }
      ASSERT_EQ(back, expected) << d << " " << count;
    }
  }
}

}  // namespace
}  // namespace attnd::engine
