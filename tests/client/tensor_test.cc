#include "client/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace attnd::client {
namespace {

ConstTensor Halves(const std::vector<std::uint16_t>& bits, v1::DataType type) {
  return {type,
          {static_cast<std::int64_t>(bits.size()), 1, 1},
          {reinterpret_cast<const char*>(bits.data()), 2 * bits.size()}};
}

TEST(Tensor, ChecksShapeTypeAndBytes) {
  const std::vector<float> data(12);
  EXPECT_TRUE(CheckTensor(F32(data, {2, 2, 3}), "keys", 2, 3).ok());
  EXPECT_EQ(CheckTensor(F32(data, {2, 6}), "keys", 2, 3).message(),
            "keys: shape is [2, 6], expected [n >= 1, 2, 3]");
  EXPECT_FALSE(CheckTensor(F32(data, {3, 2, 3}), "keys", 2, 3).ok());
  EXPECT_FALSE(CheckTensor(F32({}, {0, 2, 3}), "keys", 2, 3).ok());
  ConstTensor unknown = F32(data, {2, 2, 3});
  unknown.dtype = static_cast<v1::DataType>(77);
  EXPECT_FALSE(CheckTensor(unknown, "keys", 2, 3).ok());
}

TEST(Tensor, ShapeProductThatOverflowsDoesNotFitAnyBytes) {
  const std::vector<float> data(4);
  const std::int64_t huge = std::int64_t{1} << 40;
  EXPECT_FALSE(CheckTensor(F32(data, {huge, huge, 1}), "keys", huge, 1).ok());
  EXPECT_FALSE(CheckTensor(F32(data, {huge, 4, 1 << 20}), "keys", 4, 1 << 20).ok());
  EXPECT_FALSE(ToFloats(F32(data, {huge, huge, huge})).ok());
  EXPECT_FALSE(ToFloats(F32(data, {-4, -1, 1})).ok());
}

TEST(Tensor, RowsAreViewsOfTheSameMemory) {
  const std::vector<float> data = {0, 1, 2, 3, 4, 5};
  const ConstTensor rows = Rows(F32(data, {3, 1, 2}), 1, 2);
  EXPECT_EQ(rows.rows(), 2);
  EXPECT_EQ(RowBytes(rows), 8);
  EXPECT_EQ(static_cast<const void*>(rows.bytes.data()), static_cast<const void*>(&data[2]));
  v1::Tensor proto;
  ToProto(rows, &proto);
  EXPECT_EQ(*ToFloats(proto), (std::vector<float>{2, 3, 4, 5}));
}

TEST(Tensor, HalfToFloatAtTheEdges) {
  const std::vector<std::uint16_t> bits = {0x0000, 0x8000, 0x0001, 0x03ff, 0x0400,
                                           0x3c00, 0xc000, 0x7bff, 0x7c00, 0xfc00};
  const auto floats = ToFloats(Halves(bits, v1::F16));
  ASSERT_TRUE(floats.ok());
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> expected = {0.0F, -0.0F, 0x1p-24F, 1023 * 0x1p-24F, 0x1p-14F,
                                       1.0F, -2.0F, 65504.0F, infinity,        -infinity};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>((*floats)[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << i << ": " << (*floats)[i];
  }
  EXPECT_TRUE(std::isnan((*ToFloats(Halves({0x7e00}, v1::F16)))[0]));
}

TEST(Tensor, BrainFloatIsTheUpperHalf) {
  const auto floats = ToFloats(Halves({0x3f80, 0xc040, 0x0001}, v1::BF16));
  ASSERT_TRUE(floats.ok());
  EXPECT_EQ((*floats)[0], 1.0F);
  EXPECT_EQ((*floats)[1], -3.0F);
  EXPECT_EQ((*floats)[2], 0x1p-133F);
}

TEST(Tensor, TheRowSizeOfNoRowsDividedByZero) {
  EXPECT_EQ(RowBytes(F32({}, {0, 1, 2})), 0);
  EXPECT_EQ(Rows(F32({}, {0, 1, 2}), 0, 0).bytes.size(), 0U);
}

}  // namespace
}  // namespace attnd::client
