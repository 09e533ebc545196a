// Finite input whose features or sums leave the range of f32.
#include <cmath>
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

// One head, one key number, one value number: phi(k) v by hand.
class LinearOverflow : public testing::Test {
 protected:
  LinearOverflow() : shape_{1, 1, 1, 1, 1.0F} {}

  Stream Tokens(const std::vector<float>& keys, const std::vector<float>& values) const {
    return TokensOf(shape_, keys, values);
  }

  absl::Status CheckTail(const Engine& engine, const Stream& stream, std::int64_t position) {
    const Snapshot snapshot = At(engine, stream, position);
    return engine.CheckTail(*snapshot.sealed, snapshot.view(), scratch_);
  }

  // Seals the stream's first block into an empty state.
  absl::Status SealFirst(const Engine& engine, const Stream& stream) {
    const std::shared_ptr<SealedState> state = engine.NewState();
    const Block block = {stream.keys.data(), stream.values.data(), ~RowMask{0}, nullptr, nullptr};
    return engine.Seal(*state, 0, {&block, 1}, scratch_);
  }

  LayerShape shape_;
  Scratch scratch_;
};

TEST_F(LinearOverflow, TenToThe25IntoSquaredReluIsRefused) {
  const auto engine = MakeLinear(shape_, Config("squared_relu"));
  for (const float value : {1.0F, 0.0F}) {
    std::vector<float> keys = Repeat(0.5F, 64);
    keys[20] = 1e25F;
    const Stream stream = Tokens(keys, Repeat(value, 64));
    const absl::Status sealed = SealFirst(*engine, stream);
    EXPECT_EQ(sealed.code(), absl::StatusCode::kOutOfRange);
    EXPECT_THAT(std::string(sealed.message()), HasSubstr("tokens 0 to 63"));
    EXPECT_THAT(std::string(sealed.message()), HasSubstr("range of f32"));
    EXPECT_TRUE(CheckTail(*engine, stream, 20).ok());
    EXPECT_EQ(CheckTail(*engine, stream, 21).code(), absl::StatusCode::kOutOfRange);
  }
}

TEST_F(LinearOverflow, MaskedTokensAreNotLookedAt) {
  const auto engine = MakeLinear(shape_, Config("squared_relu"));
  Stream stream = Tokens(Repeat(1e25F, 64), Repeat(kMax, 64));
  for (std::int64_t token = 0; token < 64; ++token) stream.Mask(token);
  EXPECT_TRUE(CheckTail(*engine, stream, 64).ok());
}

// CheckTail must say exactly what Seal would do, in particular on both sides of the limit.
TEST_F(LinearOverflow, CheckTailAgreesWithSealOnBothSidesOfTheLimit) {
  const auto engine = MakeLinear(shape_, Config("relu"));
  std::int64_t refused = 0;
  for (const float value : {kMax, kMax / 2, kMax / 63.9F, kMax / 64, kMax / 64.1F, kMax / 200}) {
    for (const float key : {1.0F, 0.5F, 2.0F}) {
      for (const float sign : {1.0F, -1.0F}) {
        const Stream stream = Tokens(Repeat(key, 64), Repeat(sign * value, 64));
        const bool sealed = SealFirst(*engine, stream).ok();
        EXPECT_EQ(CheckTail(*engine, stream, 64).ok(), sealed) << value << " " << key;
        if (!sealed) ++refused;
      }
    }
  }
  EXPECT_GT(refused, 8);
  EXPECT_LT(refused, 36);
}

TEST_F(LinearOverflow, LargeTailsThatFitAreAccepted) {
  const auto engine = MakeLinear(shape_, Config("relu"));
  // The cheap bound does not suffice here: large and small never meet in one token.
  std::vector<float> keys = Repeat(1e-10F, 64);
  std::vector<float> values = Repeat(1e37F, 64);
  keys[0] = 1e37F;
  values[0] = 1e-10F;
  EXPECT_TRUE(CheckTail(*engine, Tokens(keys, values), 64).ok());
  EXPECT_TRUE(SealFirst(*engine, Tokens(keys, values)).ok());
}

TEST_F(LinearOverflow, TotalsOverManyBlocksAreChecked) {
  const auto engine = MakeLinear(shape_, Config("relu"));
  // Each block adds 0.3 of the largest number: the fourth does not fit.
  const std::int64_t tokens = kBlockTokens * 5;
  const Stream stream = Tokens(Repeat(1.0F, tokens), Repeat(0.3F / 64 * kMax, tokens));
  EXPECT_TRUE(CheckTail(*engine, stream, kBlockTokens * 3).ok());
  EXPECT_EQ(CheckTail(*engine, stream, kBlockTokens * 4).code(), absl::StatusCode::kOutOfRange);
  const Snapshot snapshot = At(*engine, stream, kBlockTokens * 3 + 1);
  const Block block = {stream.keys.data(), stream.values.data(), ~RowMask{0}, nullptr, nullptr};
  EXPECT_EQ(engine->Seal(*snapshot.sealed, kBlockTokens * 3, {&block, 1}, scratch_).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(LinearOverflow, RunningBoundComesBackDownAfterCancellation) {
  const auto engine = MakeLinear(shape_, Config("identity"));
  // +0.7, -0.7, +0.7, ... of the largest number: every total fits.
  const float value = 0.7F / 64 * kMax;
  std::vector<float> values;
  for (std::int64_t b = 0; b < 20; ++b) {
    values.insert(values.end(), 64, b % 2 == 0 ? value : -value);
  }
  const Stream stream = Tokens(Repeat(1.0F, 1280), values);
  EXPECT_TRUE(engine->Seal(*engine->NewState(), 0, BlocksOf(stream), scratch_).ok());
}

TEST_F(LinearOverflow, EveryHeadIsChecked) {
  shape_ = {3, 3, 2, 2, 1.0F};
  const auto engine = MakeLinear(shape_, Config("squared_relu"));
  for (std::int64_t head = 0; head < 3; ++head) {
    Stream stream = MakeStream(shape_, 64, 51);
    stream.keys[static_cast<std::size_t>(10 * shape_.key_row() + head * 2 + 1)] = 1e25F;
    const absl::Status checked = CheckTail(*engine, stream, 64);
    EXPECT_THAT(std::string(checked.message()), HasSubstr("kv-head " + std::to_string(head)));
    EXPECT_FALSE(SealFirst(*engine, stream).ok());
  }
}

TEST_F(LinearOverflow, QueryThatOverflowsGetsZerosAndTheFlagAndOthersTheirAnswer) {
  shape_ = {1, 1, 4, 3, 1.0F};
  const auto engine = MakeLinear(shape_, Config("squared_relu"));
  const Stream stream = MakeStream(shape_, 100, 52);
  std::vector<float> rows = NormalNumbers(3 * shape_.query_row(), 53);
  const Answers expected = Attend(*engine, At(*engine, stream, 100), rows.data(), 3);
  std::fill_n(rows.begin() + 4, 4, 1e25F);
  const Answers answers = Attend(*engine, At(*engine, stream, 100), rows.data(), 3);
  EXPECT_EQ(answers.flags, (std::vector<std::uint8_t>{0, 4, 0}));
  for (std::size_t i = 0; i < 9; ++i) {
    const bool overflowed = i / 3 == 1;
    EXPECT_EQ(answers.outputs[i], overflowed ? 0.0F : expected.outputs[i]);
    // Not zeros: a piece that overflowed must not be merged as an empty one.
    if (overflowed) {
      EXPECT_TRUE(std::isnan(answers.numerators[i]));
    } else {
      EXPECT_EQ(answers.numerators[i], expected.numerators[i]);
    }
  }
  EXPECT_TRUE(std::isnan(answers.denominators[1]));
}

TEST_F(LinearOverflow, OverflowOfTheScaledQueryIsFlaggedToo) {
  shape_ = {1, 1, 1, 1, 100.0F};
  const auto engine = MakeLinear(shape_, Config("elu_plus_one"));
  const std::vector<float> row = {kMax};
  const Answers answers = Attend(*engine, At(*engine, Tokens({1.0F}, {1.0F}), 1), row.data(), 1);
  EXPECT_EQ(answers.flags[0], 4);
  EXPECT_EQ(answers.outputs[0], 0.0F);
}

}  // namespace
}  // namespace attnd::engine::linear_test
