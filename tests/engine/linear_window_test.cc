// Sliding windows of linear layers: what a query sees, that nothing else is left of what it no
// longer sees, and what the sums of a window take.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/layer_stream.h"
#include "engine/linear/block_window.h"
#include "engine/linear/window_engine.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

constexpr float kMax = std::numeric_limits<float>::max();
constexpr LayerShape kGrouped = {2, 6, 20, 17, 0.3F};

std::unique_ptr<const Engine> MakeWindowed(const LayerShape& shape, const std::string& map,
                                           std::int64_t window) {
  EngineConfig config = {shape, Config(map), window};
  auto engine = MakeEngine(config);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::int64_t FirstVisible(std::int64_t position, std::int64_t window) {
  return std::max<std::int64_t>(0, (position - 1) / 64 * 64 + 64 - window);
}

// The stream with everything before the window masked, in the mask alone.
std::vector<std::uint8_t> WindowMask(const Stream& stream, std::int64_t first) {
  std::vector<std::uint8_t> mask = stream.mask;
  std::fill_n(mask.begin(), first, std::uint8_t{0});
  return mask;
}

std::vector<std::int64_t> Edges(std::int64_t window, std::int64_t most) {
  std::vector<std::int64_t> positions = {1, 2, 63, 64, 65, 128, 129, most};
  for (const std::int64_t multiple : {1, 2, 3}) {
    for (const std::int64_t around : {-65, -64, -1, 0, 1, 63, 64, 65}) {
      positions.push_back(multiple * window + around);
    }
  }
  std::erase_if(positions, [&](std::int64_t p) { return p < 1 || p > most; });
  return positions;
}

struct Case {
  const char* map;
  std::int64_t window;
};

class LinearWindow : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t kTokens = 64 * 23 + 5;

  LinearWindow() {
    for (std::int64_t token = 0; token < kTokens; ++token) {
      if (token % 5 == 2 || (token >= 320 && token < 384)) stream_.Mask(token);
    }
  }

  Stream stream_ = MakeStream(kGrouped, kTokens, 61);
  const std::vector<float> queries_ = NormalNumbers(8 * kGrouped.query_row(), 62);
  const std::unique_ptr<const Engine> engine_ =
      MakeWindowed(kGrouped, GetParam().map, GetParam().window);
};

// The engine without a window, which an oracle holds, over the same tokens with those that the
// window leaves out masked.
TEST_P(LinearWindow, AnswersAreThoseOverTheVisibleTokens) {
  const auto all = MakeWindowed(kGrouped, GetParam().map, 0);
  for (const std::int64_t position : Edges(GetParam().window, kTokens)) {
    SCOPED_TRACE(position);
    Stream visible = stream_;
    for (std::int64_t t = 0; t < FirstVisible(position, GetParam().window); ++t) visible.Mask(t);
    const Answers expected = Attend(*all, At(*all, visible, position), queries_.data(), 8);
    const Answers answers = Attend(*engine_, At(*engine_, stream_, position), queries_.data(), 8);
    EXPECT_EQ(answers.flags, expected.flags);
    EXPECT_EQ(answers.exponents, expected.exponents);
    const auto in_f64 = [](const std::vector<float>& v) {
      return std::vector<double>(v.begin(), v.end());
    };
    EXPECT_LT(RelativeError(answers.outputs, in_f64(expected.outputs)), 1e-6);
    EXPECT_LT(RelativeError(answers.numerators, in_f64(expected.numerators)), 1e-6);
    EXPECT_LT(RelativeError(answers.denominators, in_f64(expected.denominators)), 1e-6);
  }
}

TEST_P(LinearWindow, BitsDoNotDependOnTheSpansOfSealing) {
  for (const std::int64_t position : {std::int64_t{64 * 11 + 7}, kTokens}) {
    const Answers expected = Attend(*engine_, At(*engine_, stream_, position), queries_.data(), 8);
    for (const bool features_from_tail : {false, true}) {
      for (const std::vector<std::int64_t>& spans :
           {std::vector<std::int64_t>{1}, {2}, {1, 3}, {8, 1}}) {
        const Snapshot cut = At(*engine_, stream_, position, {spans, features_from_tail, true});
        EXPECT_TRUE(Attend(*engine_, cut, queries_.data(), 8) == expected) << spans[0];
      }
    }
  }
}

TEST_P(LinearWindow, StepsHaveTheBitsOfAttends) {
  const std::int64_t first = 64 * 12 + 50;
  const Snapshot last = At(*engine_, stream_, first + 7);
  const Answers steps = AttendCausally(*engine_, last, queries_.data(), 8, last.rows - 7);
  for (std::int64_t i = 0; i < 8; ++i) {
    const Answers attend = Attend(*engine_, At(*engine_, stream_, first + i),
                                  queries_.data() + i * kGrouped.query_row(), 1);
    const auto row = steps.outputs.begin() + i * kGrouped.output_row();
    EXPECT_TRUE(SameBits({row, row + kGrouped.output_row()}, attend.outputs)) << i;
  }
}

TEST_P(LinearWindow, CloneLeavesTheOriginalAsItWas) {
  const Snapshot snapshot = At(*engine_, stream_, 64 * 15 + 1);
  const Answers before = Attend(*engine_, snapshot, queries_.data(), 8);
  const std::int64_t bytes = snapshot.sealed->bytes();
  const std::shared_ptr<SealedState> copy = engine_->Clone(*snapshot.sealed);
  Scratch scratch;
  for (std::int64_t b = 0; b < 9; ++b) {
    const Block block = {stream_.keys.data() + b * 64 * kGrouped.key_row(),
                         stream_.values.data() + b * 64 * kGrouped.value_row(), ~RowMask{0}};
    ASSERT_TRUE(engine_->Seal(*copy, 64 * (15 + b), {&block, 1}, scratch).ok());
  }
  EXPECT_TRUE(Attend(*engine_, snapshot, queries_.data(), 8) == before);
  EXPECT_EQ(snapshot.sealed->bytes(), bytes);
}

TEST_P(LinearWindow, AHugeOutlierThatLeftLeavesNoTrace) {
  const std::string map = GetParam().map;
  const std::int64_t outlier = 64 * 3 + 11;
  for (const bool in_value : {true, false}) {
    Stream stream = stream_;
    const std::int64_t row = in_value ? stream.shape.value_row() : stream.shape.key_row();
    std::vector<float>& numbers = in_value ? stream.values : stream.keys;
    // Features are squares, or exponentials of squares: 2^(several hundred) of a key of norm 40.
    const bool squares = map == "squared_relu" || map == "taylor";
    const bool exponentials = map == "favor_positive" || map == "random_fourier";
    const float key = squares ? 1e15F : exponentials ? 9.0F : 1e30F;
    std::fill_n(numbers.begin() + outlier * row, row, in_value ? 1e30F : key);
    const auto answers = [&](const Stream& of, std::int64_t position) {
      return Attend(*engine_, At(*engine_, of, position, {{1, 3}}), queries_.data(), 8);
    };
    EXPECT_FALSE(answers(stream, outlier + 1) == answers(stream_, outlier + 1));
    // From the first token of the block with which the outlier's leaves.
    constexpr std::int64_t kBlock = 3 * kBlockTokens;
    for (std::int64_t p = kBlock + GetParam().window + 1; p <= kTokens; p += 64 + 17) {
      EXPECT_TRUE(answers(stream, p) == answers(stream_, p)) << p;
    }
    // While a token of the outlier's block is visible it is there.
    const std::int64_t last = std::min(kBlock + GetParam().window, kTokens);
    EXPECT_FALSE(answers(stream, last) == answers(stream_, last));
  }
}

TEST_P(LinearWindow, MemoryIsBoundedByTheWindow) {
  const std::int64_t bound = engine_->fixed_bytes() -
                             Tail::Bytes(kGrouped, engine_->tail_layout()) +
                             GetParam().window * engine_->bytes_per_token();
  const std::shared_ptr<SealedState> state = engine_->NewState();
  Scratch scratch;
  const Block block = {stream_.keys.data(), stream_.values.data(), ~RowMask{0}};
  std::int64_t largest = 0;
  for (std::int64_t b = 0; b < 5000; ++b) {
    ASSERT_TRUE(engine_->Seal(*state, b * 64, {&block, 1}, scratch).ok());
    largest = std::max(largest, state->bytes());
  }
  EXPECT_LE(largest, bound);
}

INSTANTIATE_TEST_SUITE_P(
    Maps, LinearWindow,
    testing::Values(Case{"elu_plus_one", 64}, Case{"elu_plus_one", 128}, Case{"elu_plus_one", 192},
                    Case{"elu_plus_one", 320}, Case{"elu_plus_one", 448}, Case{"elu_plus_one", 576},
                    Case{"squared_relu", 256}, Case{"relu", 320}, Case{"identity", 384},
                    Case{"favor_positive", 64}, Case{"favor_positive", 320},
                    Case{"random_fourier", 448}, Case{"taylor", 192}),
    [](const auto& instance) {
      return std::string(instance.param.map) + "_" + std::to_string(instance.param.window);
    });

TEST(LinearWindowOracle, AgreesAroundTheEdges) {
  for (const std::int64_t window : {64, 128, 192, 320, 512}) {
    for (const char* map : {"elu_plus_one", "squared_relu"}) {
      const auto engine = MakeWindowed(kGrouped, map, window);
      Stream stream = MakeStream(kGrouped, 1700, 63);
      for (std::int64_t token = 1; token < 1700; token += 3) stream.Mask(token);
      const std::vector<float> queries = NormalNumbers(5 * kGrouped.query_row(), 64);
      for (const std::int64_t position : Edges(window, 1700)) {
        SCOPED_TRACE(testing::Message() << map << " " << window << " at " << position);
        const std::vector<std::uint8_t> mask = WindowMask(stream, FirstVisible(position, window));
        oracle::Context context = stream.context(position);
        context.mask = mask.data();
        const oracle::Answers truth = oracle::Linear(
            context, {queries.data(), oracle::AllVisible(5, position)}, OracleMap(map), 0, true);
        const Answers answers = Attend(*engine, At(*engine, stream, position), queries.data(), 5);
        EXPECT_LT(RelativeError(answers.outputs, truth.outputs), 1e-6);
        EXPECT_LT(RelativeError(answers.denominators, truth.denominators), 1e-6);
      }
    }
  }
}

TEST(LinearWindowTest, AWindowWithoutUnmaskedTokensIsEmpty) {
  for (const std::int64_t window : {64, 256}) {
    const auto engine = MakeWindowed(kGrouped, "elu_plus_one", window);
    Stream stream = MakeStream(kGrouped, 700, 65);
    for (std::int64_t token = 128; token < 660; ++token) stream.Mask(token);
    const std::vector<float> queries = NormalNumbers(kGrouped.query_row(), 66);
    for (const std::int64_t position : {std::int64_t{128}, 128 + window - 64, 128 + window - 63,
                                        std::int64_t{640}, std::int64_t{641}, std::int64_t{661}}) {
      bool empty = true;
      for (std::int64_t t = FirstVisible(position, window); t < position; ++t) {
        empty = empty && stream.mask[Size(t)] == 0;
      }
      const Answers answers = Attend(*engine, At(*engine, stream, position), queries.data(), 1);
      EXPECT_EQ(answers.flags[0], static_cast<std::uint8_t>(empty ? RowFlag::kEmpty : RowFlag::kOk))
          << window << " at " << position;
    }
  }
}

// Blocks +0.9, +0.9 behind -0.9 of the range were accepted, and once the first left nothing could
// be appended any more.
TEST(LinearWindowTest, NoAcceptedTokensKeepLaterOnesOut) {
  const LayerShape shape = {1, 1, 1, 1, 1.0F};
  for (const char* map : {"identity", "favor_positive"}) {
    const auto engine = MakeWindowed(shape, map, 320);
    std::mt19937 random(67);
    Scratch scratch;
    int refused = 0;
    for (int round = 0; round < 40; ++round) {
      std::shared_ptr<const LayerState> state = EmptyLayer(*engine);
      for (int block = 0; block < 40; ++block) {
        const std::vector<float> keys(
            64, std::string(map) == "identity" ? 1.0F : static_cast<float>(random() % 60));
        const float share = static_cast<float>(static_cast<double>(random() % 2001) / 1000 - 1);
        const std::vector<float> values(64, share * (kMax / 64) / (map[0] == 'i' ? 1 : 2));
        const std::vector<std::uint8_t> all_masked(64, 0);
        const auto append = [&](const std::uint8_t* mask) {
          LayerDraft draft(*engine, state);
          absl::Status status = draft.Append(
              {64, {DataType::kF32, keys.data(), 64}, {DataType::kF32, values.data(), 64}, mask}, 0,
              64, nullptr, scratch);
          status.Update(draft.CheckTail(scratch));
          if (status.ok()) state = draft.Finish();
          return status;
        };
        if (!append(nullptr).ok()) {
          ++refused;
          EXPECT_TRUE(append(all_masked.data()).ok()) << map << ", block " << block;
        }
      }
    }
    EXPECT_GT(refused, 40) << map;
    EXPECT_LT(refused, 1500) << map;
  }
}

TEST(LinearWindowTest, CheckTailAgreesWithSealOnBothSidesOfTheLimit) {
  const LayerShape shape = {1, 1, 1, 1, 1.0F};
  const auto engine = MakeWindowed(shape, "relu", 192);
  constexpr std::int64_t kTokens = 3 * kBlockTokens;
  Stream stream = MakeStream(shape, kTokens, 68);
  std::fill(stream.keys.begin(), stream.keys.end(), 1.0F);
  int refused = 0;
  for (int step = 0; step < 35; ++step) {
    const double part = 0.3333330 + 2e-8 * step;
    const auto value = static_cast<float>(part / 64 * static_cast<double>(kMax));
    std::fill(stream.values.begin(), stream.values.end(), value);
    const Snapshot snapshot = At(*engine, stream, kTokens);
    Scratch scratch;
    const bool accepted = engine->CheckTail(*snapshot.sealed, snapshot.view(), scratch).ok();
    const Block block = {stream.keys.data(), stream.values.data(), ~RowMask{0}};
    EXPECT_EQ(engine->Seal(*engine->Clone(*snapshot.sealed), 128, {&block, 1}, scratch).ok(),
              accepted);
    refused += accepted ? 0 : 1;
  }
  EXPECT_GT(refused, 5);
  EXPECT_LT(refused, 30);
}

// A window's total is what its blocks add up to, in whole numbers; of few nodes, and in little more
// memory than the blocks.
TEST(BlockWindowTest, HoldsTheNewestBlocksInFewNodes) {
  const LinearDims dims(1, 1);
  for (std::int64_t most = 0; most <= 40; ++most) {
    BlockWindow window(most);
    for (std::int64_t pushed = 1; pushed <= 200; ++pushed) {
      auto block = std::make_shared<SumNode>(dims, 1, 0);
      for (std::int64_t i = 0; i < dims.totals(); ++i) {
        block->block.data()[i] = static_cast<float>(pushed * (i + 1));
      }
      block->shares[0] = pushed;
      block->unmasked = pushed;
      block->exponents[0] = static_cast<std::int32_t>(pushed % 7);
      window.Push(dims, std::move(block));
      const std::int64_t held = std::min(pushed, most);
      ASSERT_EQ(window.blocks(), held);
      double total = 0;
      std::int64_t nodes = 0;
      std::int64_t unmasked = 0;
      std::int64_t bytes = 0;
      std::vector<double> totals(Size(dims.totals()), 0.0);
      window.ForNodes([&](const SumNode& node) {
        AddNode(dims, node, 0, 7, totals.data());
        unmasked += node.unmasked;
        EXPECT_EQ(node.shares[0], node.unmasked);
        bytes += KeptBytes(dims, 1, node.level);
        ++nodes;
      });
      std::int64_t expected = 0;
      for (std::int64_t b = pushed - held + 1; b <= pushed; ++b) {
        total += std::ldexp(static_cast<double>(b), static_cast<int>(b % 7) - 7);
        expected += b;
      }
      EXPECT_EQ(unmasked, expected);
      for (std::int64_t i = 0; i < dims.totals(); ++i) {
        ASSERT_EQ(totals[Size(i)], total * static_cast<double>(i + 1)) << most << " " << pushed;
      }
      EXPECT_LE(nodes, 2 * window.chunk_level() + 1);
      EXPECT_LE(bytes, held * (NodeBytes(dims, 1, 0) + NodeBytes(dims, 1, 1)));
    }
  }
}

// What an append is charged covers what it allocates while the state before is still there, by the
// allocator's own count, and what the state grows by.
TEST(LinearWindowTest, AppendsTakeNoMoreThanTheyAreChargedFor) {
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
  };
  const std::int64_t tokens = 6000;
  const Stream stream = MakeStream(kGrouped, tokens, 69);
  const TokenBatch batch = {tokens,
                            {DataType::kF32, stream.keys.data(), tokens * kGrouped.key_row()},
                            {DataType::kF32, stream.values.data(), tokens * kGrouped.value_row()},
                            nullptr};
  Scratch scratch;
  for (const std::int64_t window : {64, 128, 192, 448, 1024, 4096}) {
    const auto engine = MakeWindowed(kGrouped, "elu_plus_one", window);
    // The scratch memory is not the session's.
    LayerDraft warm(*engine, EmptyLayer(*engine));
    ASSERT_TRUE(warm.Append(batch, 0, 1000, nullptr, scratch).ok());
    std::mt19937 random(70);
    std::shared_ptr<const LayerState> state = EmptyLayer(*engine);
    while (state->position() < tokens) {
      const std::int64_t most = std::array<std::int64_t, 3>{3, 70, 2500}[random() % 3];
      const std::int64_t count = std::min<std::int64_t>(
          1 + static_cast<std::int64_t>(random()) % most, tokens - state->position());
      const std::int64_t charged = engine->AppendBytes(state->position(), count);
      const std::int64_t before = allocated();
      LayerDraft draft(*engine, state);
      ASSERT_TRUE(draft.Append(batch, state->position(), count, nullptr, scratch).ok());
      // The allocator's own share comes on top.
      EXPECT_LE(allocated() - before, charged + charged / 10) << window << ", " << count;
      const std::int64_t bytes = state->bytes();
      state = draft.Finish();
      EXPECT_LE(state->bytes() - bytes, charged) << window << ", " << count;
      EXPECT_LE(charged,
                2 * engine->fixed_bytes() + 2 * (window + 640) * engine->bytes_per_token());
    }
  }
}

}  // namespace
}  // namespace attnd::engine::linear_test
