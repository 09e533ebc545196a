// Efficient Attention where sums leave the range of f32.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

using ::testing::HasSubstr;

constexpr float kMax = std::numeric_limits<float>::max();

// One head, one key number, one value number.
class EfficientOverflow : public testing::Test {
 protected:
  EfficientOverflow() : engine_(MakeLinear(shape_, Config("efficient"))) {}

  Stream Tokens(const std::vector<float>& keys, const std::vector<float>& values) const {
    return TokensOf(shape_, keys, values);
  }

  // What CheckTail says of the block that ends at `position`, having said the same as Seal.
  bool Fits(const Stream& stream, std::int64_t position) {
    const Snapshot snapshot = At(*engine_, stream, position);
    EXPECT_EQ(snapshot.rows, kBlockTokens);
    const absl::Status checked = engine_->CheckTail(*snapshot.sealed, snapshot.view(), scratch_);
    const std::int64_t first = position - kBlockTokens;
    for (const Tail* encoded :
         {static_cast<const Tail*>(nullptr), static_cast<const Tail*>(snapshot.tail.get())}) {
      const Block block = {stream.keys.data() + first,
                           stream.values.data() + first,
                           snapshot.valid,
                           nullptr,
                           nullptr,
                           encoded};
      const std::shared_ptr<SealedState> state = engine_->Clone(*snapshot.sealed);
      const absl::Status sealed = engine_->Seal(*state, first, {&block, 1}, scratch_);
      EXPECT_EQ(sealed.ok(), checked.ok()) << sealed;
      if (!sealed.ok()) {
        EXPECT_EQ(sealed.code(), absl::StatusCode::kOutOfRange);
        EXPECT_THAT(std::string(sealed.message()), HasSubstr("kv-head 0 leave the range of f32"));
      }
    }
    if (!checked.ok()) {
      EXPECT_EQ(checked.code(), absl::StatusCode::kOutOfRange);
    }
    return checked.ok();
  }

  LayerShape shape_ = {1, 1, 1, 1, 1.0F};
  std::unique_ptr<const Engine> engine_;
  Scratch scratch_;
};

TEST_F(EfficientOverflow, BothSidesOfTheLimit) {
  for (const float key : {0.0F, 44.361419555836F}) {  // mantissas of 1
    for (const float sign : {1.0F, -1.0F}) {
      EXPECT_FALSE(Fits(Tokens(Repeat(key, 64), Repeat(sign * kMax / 63.9F, 64)), 64)) << key;
      EXPECT_TRUE(Fits(Tokens(Repeat(key, 64), Repeat(sign * kMax / 64.1F, 64)), 64)) << key;
      EXPECT_TRUE(Fits(Tokens(Repeat(key, 64), Repeat(sign * kMax / 200, 64)), 64)) << key;
    }
  }
  // A mantissa of 2^30 and of 2^-30.
  EXPECT_FALSE(Fits(Tokens(Repeat(20.8F, 64), Repeat(1e30F, 64)), 64));
  EXPECT_TRUE(Fits(Tokens(Repeat(-20.8F, 64), Repeat(kMax, 64)), 64));
}

TEST_F(EfficientOverflow, KeysAloneNeverOverflow) {
  for (const float key : {22.1F, 22.2F, 1e3F, -1e3F, kMax, -kMax}) {
    EXPECT_TRUE(Fits(Tokens(Repeat(key, 64), Repeat(1e10F, 64)), 64)) << key;
  }
}

TEST_F(EfficientOverflow, MaskedTokensAreNotLookedAt) {
  Stream stream = Tokens(Repeat(20.0F, 64), Repeat(kMax, 64));
  for (std::int64_t token = 0; token < 64; ++token) stream.Mask(token);
  EXPECT_TRUE(Fits(stream, 64));
}

TEST_F(EfficientOverflow, TotalsOverManyBlocks) {
  // Each block adds 0.3 of the largest number: the fourth does not fit.
  const Stream stream = Tokens(Repeat(0.0F, 320), Repeat(0.3F / 64 * kMax, 320));
  EXPECT_TRUE(Fits(stream, 192));
  EXPECT_FALSE(Fits(stream, 256));
}

// Totals near the limit that a block of larger steps makes small, or that dwarf the block.
TEST_F(EfficientOverflow, TotalsThatAreRescaled) {
  const float value = 0.3F / 64 * kMax;
  std::vector<float> keys = Repeat(0.0F, 256);
  const std::vector<float> values = Repeat(value, 256);
  // One step above: the totals fall by 2^64, and the block is like a first one.
  for (std::size_t i = 192; i < 256; ++i) keys[i] = 44.0F;
  EXPECT_TRUE(Fits(Tokens(keys, values), 256));
  // As many blocks again do not fit.
  keys.resize(448, 44.361419555836F);
  EXPECT_FALSE(Fits(Tokens(keys, Repeat(value, 448)), 448));
  // One step below: the block falls.
  for (std::size_t i = 192; i < 256; ++i) keys[i] = -44.0F;
  keys.resize(256);
  EXPECT_TRUE(Fits(Tokens(keys, values), 256));
  // Its own sums overflow before they are added to anything.
  for (std::size_t i = 192; i < 256; ++i) keys[i] = 64.0F;
  EXPECT_FALSE(Fits(Tokens(keys, values), 256));
  // One token of larger steps in the block: the others fall with the totals.
  for (std::size_t i = 192; i < 256; ++i) keys[i] = i == 200 ? 44.0F : 0.0F;
  EXPECT_TRUE(Fits(Tokens(keys, values), 256));
}

TEST_F(EfficientOverflow, EveryHeadIsChecked) {
  shape_ = {3, 3, 2, 2, 1.0F};
  engine_ = MakeLinear(shape_, Config("efficient"));
  for (std::int64_t head = 0; head < 3; ++head) {
    Stream stream = MakeStream(shape_, 64, 51);
    stream.keys[static_cast<std::size_t>(60 + head * 2 + 1)] = 20.0F;
    stream.values[static_cast<std::size_t>(60 + head * 2)] = 1e35F;
    const Snapshot snapshot = At(*engine_, stream, 64);
    EXPECT_THAT(
        std::string(engine_->CheckTail(*snapshot.sealed, snapshot.view(), scratch_).message()),
        HasSubstr("kv-head " + std::to_string(head)));
  }
}

// The weights add up to 1, but the chains of an answer are c times as large at most.
TEST_F(EfficientOverflow, AnAnswerNearTheLimitIsFlaggedOrRight) {
  shape_ = {1, 1, 16, 1, 1.0F};
  engine_ = MakeLinear(shape_, Config("efficient"));
  const std::vector<float> row = Repeat(1.0F, 16);
  for (const float value : {kMax / 20, kMax / 4}) {
    const Stream stream = Tokens(Repeat(-3.0F, 16), {value});
    Stream one = stream;
    one.tokens = 1;
    one.mask.assign(1, 1);
    const Answers answers = Attend(*engine_, At(*engine_, one, 1), row.data(), 1);
    if (value < kMax / 16) {
      EXPECT_FLOAT_EQ(answers.outputs[0], value);
      EXPECT_EQ(answers.flags[0], 0);
    } else {
      EXPECT_EQ(answers.outputs[0], 0.0F);
      EXPECT_EQ(answers.flags[0], static_cast<std::uint8_t>(RowFlag::kOverflow));
    }
  }
}

}  // namespace
}  // namespace attnd::engine::linear_test
