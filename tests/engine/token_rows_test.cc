// Tokens in stored form: conversion, rounding, masks, the checks, and their digest.
#include "engine/token_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/simd/convert.h"
#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr LayerShape kShape = {.kv_heads = 2, .query_heads = 2, .key_dim = 5, .value_dim = 3};

std::unique_ptr<const Engine> Make(DataType storage) {
  return *MakeEngine({kShape, ExactConfig{storage}});
}

class TokenRowsTest : public ::testing::Test {
 protected:
  TokenBatch Batch() const {
    return {100,
            {DataType::kF32, keys_.data(), 1000},
            {DataType::kF32, values_.data(), 600},
            mask_.empty() ? nullptr : mask_.data()};
  }
  Digest DigestOf(const Engine& engine, const TokenBatch& batch, std::int64_t piece) {
    TokenDigester digester;
    for (std::int64_t i = 0; i < 100; i += piece) {
      const Scratch::Frame frame(scratch_);
      const auto rows = StoredRows(engine, batch, i, std::min(piece, 100 - i), scratch_);
      EXPECT_TRUE(rows.ok()) << rows.status();
      digester.Update(engine, *rows);
    }
    return digester.Result();
  }

  const std::unique_ptr<const Engine> f32_ = Make(DataType::kF32);
  const std::unique_ptr<const Engine> bf16_ = Make(DataType::kBf16);
  std::vector<float> keys_ = RandomValues(1000, 1);
  std::vector<float> values_ = RandomValues(600, 2);
  std::vector<std::uint8_t> mask_;
  Scratch scratch_;
};

TEST_F(TokenRowsTest, RowsOfF32AreTakenInPlace) {
  const auto rows = StoredRows(*f32_, Batch(), 10, 30, scratch_);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->count, 30);
  EXPECT_EQ(rows->keys, keys_.data() + 100);
  EXPECT_EQ(rows->values, values_.data() + 60);
  EXPECT_EQ(rows->valid, FirstRows(30));
}

TEST_F(TokenRowsTest, MaskedRowsBecomeZeros) {
  mask_.assign(100, 1);
  mask_[11] = mask_[39] = mask_[40] = 0;
  const auto rows = StoredRows(*f32_, Batch(), 10, 30, scratch_);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->valid, FirstRows(30) & ~(RowMask{1} << 1) & ~(RowMask{1} << 29));
  for (std::int64_t i = 0; i < 30; ++i) {
    for (std::int64_t j = 0; j < 10; ++j) {
      EXPECT_EQ(rows->keys[i * 10 + j],
                i == 1 || i == 29 ? 0 : keys_[static_cast<std::size_t>((10 + i) * 10 + j)]);
    }
  }
}

TEST_F(TokenRowsTest, NarrowStorageRoundsOnce) {
  const auto rows = StoredRows(*bf16_, Batch(), 0, 64, scratch_);
  ASSERT_TRUE(rows.ok());
  for (std::size_t i = 0; i < 640; ++i) {
    std::uint16_t narrow = 0;
    float want = 0;
    F32ToBf16(&keys_[i], &narrow, 1);
    Bf16ToF32(&narrow, &want, 1);
    EXPECT_EQ(rows->keys[i], want);
  }
}

TEST_F(TokenRowsTest, NumbersThatAreNotFiniteAreNamed) {
  keys_[37 * 10 + 4] = NAN;
  auto rows = StoredRows(*f32_, Batch(), 10, 64, scratch_);
  EXPECT_EQ(rows.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(rows.status().message()).find("keys: token 37"), std::string::npos)
      << rows.status();
  EXPECT_TRUE(StoredRows(*f32_, Batch(), 38, 60, scratch_).ok());
  values_[std::size_t{99} * 6] = -INFINITY;
  rows = StoredRows(*f32_, Batch(), 90, 10, scratch_);
  EXPECT_NE(std::string(rows.status().message()).find("values: token 99"), std::string::npos);
}

TEST_F(TokenRowsTest, ANumberThatRoundsToInfinityIsRefused) {
  keys_[0] = 3.4e38F;  // finite; beyond the largest bfloat16 after rounding
  EXPECT_TRUE(StoredRows(*f32_, Batch(), 0, 1, scratch_).ok());
  EXPECT_EQ(StoredRows(*bf16_, Batch(), 0, 1, scratch_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(TokenRowsTest, ADigestDependsOnWhatIsStoredAndNotOnCutting) {
  const Digest whole = DigestOf(*f32_, Batch(), 64);
  for (const std::int64_t piece : {1, 7, 63}) EXPECT_EQ(DigestOf(*f32_, Batch(), piece), whole);
  // A mask of ones is no mask; what masked rows hold is not stored.
  mask_.assign(100, 1);
  EXPECT_EQ(DigestOf(*f32_, Batch(), 64), whole);
  mask_[5] = 0;
  const Digest masked = DigestOf(*f32_, Batch(), 64);
  EXPECT_NE(masked, whole);
  keys_[50] += 1;
  EXPECT_EQ(DigestOf(*f32_, Batch(), 64), masked);
  // A masked token is not a token of zeros.
  mask_.clear();
  std::fill_n(keys_.begin() + 50, 10, 0.0F);
  std::fill_n(values_.begin() + 30, 6, 0.0F);
  EXPECT_NE(DigestOf(*f32_, Batch(), 64), masked);
}

TEST_F(TokenRowsTest, AKeyIsNotAValueToTheDigest) {
  const LayerShape square = {.kv_heads = 1, .query_heads = 1, .key_dim = 5, .value_dim = 5};
  const auto engine = *MakeEngine({square, ExactConfig{}});
  const TokenBatch batch = {
      100, {DataType::kF32, keys_.data(), 500}, {DataType::kF32, keys_.data() + 500, 500}, nullptr};
  const TokenBatch swapped = {100, batch.values, batch.keys, nullptr};
  EXPECT_NE(DigestOf(*engine, batch, 64), DigestOf(*engine, swapped, 64));
}

TEST_F(TokenRowsTest, NarrowMessagesHaveTheDigestOfTheirWideNumbers) {
  std::vector<std::uint16_t> keys(1000);
  std::vector<std::uint16_t> values(600);
  F32ToF16(keys_.data(), keys.data(), 1000);
  F32ToF16(values_.data(), values.data(), 600);
  F16ToF32(keys.data(), keys_.data(), 1000);
  F16ToF32(values.data(), values_.data(), 600);
  const TokenBatch narrow = {
      100, {DataType::kF16, keys.data(), 1000}, {DataType::kF16, values.data(), 600}, nullptr};
  EXPECT_EQ(DigestOf(*f32_, narrow, 33), DigestOf(*f32_, Batch(), 64));
}

}  // namespace
}  // namespace attnd::engine
