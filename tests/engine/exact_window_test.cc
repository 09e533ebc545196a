// Sliding windows of exact layers, which move by the token.
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "engine/exact/exact_plan.h"
#include "engine/gemm.h"
#include "engine/layer_stream.h"
#include "gtest/gtest.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::exact_test {
namespace {

constexpr LayerShape kGrouped = {2, 6, 12, 10, 0.3F};

std::unique_ptr<const Engine> MakeWindowed(const LayerShape& shape, std::int64_t window,
                                           DataType storage = DataType::kF32) {
  auto engine = MakeEngine({shape, ExactConfig{storage}, window});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// The context as a query at `position` sees it.
oracle::Context Visible(const Tokens& tokens, std::int64_t position, std::int64_t window,
                        std::vector<std::uint8_t>& mask) {
  mask = tokens.mask;
  std::fill_n(mask.begin(), std::max<std::int64_t>(position - window, 0), std::uint8_t{0});
  oracle::Context context = tokens.context();
  context.tokens = position;
  context.mask = mask.data();
  return context;
}

void ExpectTruth(const Engine& engine, const Tokens& tokens, std::int64_t position,
                 std::int64_t window, std::int64_t count) {
  const LayerShape& shape = engine.shape();
  const std::vector<float> queries = RandomValues(count * shape.query_row(), 71);
  std::vector<std::uint8_t> mask;
  const oracle::Context context = Visible(tokens, position, window, mask);
  const oracle::Queries asked = {queries.data(), oracle::AllVisible(count, position)};
  const oracle::Answers truth = oracle::Softmax(context, asked);
  const Asked options = {.top_k = 3};
  const Answers answers =
      Attend(engine, At(engine, tokens, position, {3, 1}), queries.data(), count, options);
  EXPECT_LT(RelativeError(answers.outputs, truth.outputs), 5e-6);
  for (std::size_t row = 0; row < truth.empty.size(); ++row) {
    EXPECT_EQ(answers.flags[row], truth.empty[row]);
    if (truth.empty[row] != 0) continue;
    EXPECT_NEAR(answers.log_normalizers[row], truth.log_normalizers[row], 2e-5);
    const auto heads = Size(shape.query_heads);
    const std::vector<double> weights =
        oracle::SoftmaxWeights(context, asked, static_cast<std::int64_t>(row / heads),
                               static_cast<std::int64_t>(row % heads));
    for (std::size_t k = 0; k < 3; ++k) {
      const std::int64_t top = answers.top_positions[row * 3 + k];
      if (top < 0) continue;
      EXPECT_GE(top, position - window);
      EXPECT_NEAR(answers.top_weights[row * 3 + k], weights[Size(top)], 1e-5);
    }
    EXPECT_NEAR(answers.top_weights[row * 3], *std::max_element(weights.begin(), weights.end()),
                1e-5);
  }
}

TEST(ExactWindow, AgreesWithTheOracleAroundTheEdges) {
  for (const DataType storage : {DataType::kF32, DataType::kBf16}) {
    for (const std::int64_t window : {1, 2, 63, 64, 65, 100, 128, 300, 640}) {
      const auto engine = MakeWindowed(kGrouped, window, storage);
      Tokens tokens = RandomTokens(kGrouped, 1400, 72);
      for (std::int64_t t = 4; t < 1400; t += 6) tokens.Mask(t);
      tokens.Round(*engine);
      std::vector<std::int64_t> positions = {1, 63, 64, 65, 128, 129, 1400};
      for (const std::int64_t multiple : {1, 2}) {
        for (const std::int64_t around : {-1, 0, 1, 63, 64, 65}) {
          positions.push_back(multiple * window + around);
        }
      }
      for (const std::int64_t position : positions) {
        if (position < 1) continue;
        SCOPED_TRACE(testing::Message() << window << " at " << position);
        ExpectTruth(*engine, tokens, position, window, 3);
      }
      ExpectTruth(*engine, tokens, 777, window, 40);
    }
  }
}

// Windows that begin and end on both sides of where keys are split, every 16,384 tokens.
TEST(ExactWindow, StepsHaveTheBitsOfAttendsAtEachPosition) {
  struct Run {
    std::int64_t window, tokens, queries;
  };
  for (const Run& run :
       {Run{1, 500, 52}, Run{5, 448, 64}, Run{64, 448, 64}, Run{70, 509, 60}, Run{200, 640, 64},
        Run{16384, 2 * 16384 + 30, 30}, Run{16384 - 20, 2 * 16384 + 50, 50},
        Run{16384 + 64, 16384 + 128, 64}, Run{33000, 4 * 16384 + 64, 64}}) {
    const LayerShape shape = run.tokens < 1000 ? kGrouped : LayerShape{1, 2, 3, 2, 0.5F};
    const auto engine = MakeWindowed(shape, run.window);
    Tokens tokens = RandomTokens(shape, run.tokens, 73);
    for (std::int64_t t = 1; t < run.tokens; t += 9) tokens.Mask(t);
    const std::vector<float> queries = RandomValues(run.queries * shape.query_row(), 74);
    const Snapshot last = At(*engine, tokens, run.tokens);
    const Answers steps =
        Attend(*engine, last, queries.data(), run.queries,
               {.causal = true, .first_cut = last.rows - run.queries + 1, .top_k = 4});
    for (std::int64_t i = 0; i < run.queries; i += run.tokens < 1000 ? 1 : 7) {
      const std::int64_t position = run.tokens - run.queries + 1 + i;
      const Answers attend = Attend(*engine, At(*engine, tokens, position),
                                    queries.data() + i * shape.query_row(), 1, {.top_k = 4});
      EXPECT_TRUE(attend == steps.Slice(i, 1, run.queries))
          << "window " << run.window << ", position " << position;
    }
    // However many are asked together.
    const Answers all = Attend(*engine, last, queries.data(), run.queries, {.top_k = 4});
    for (const std::int64_t n : {1, 3, 17}) {
      EXPECT_TRUE(Attend(*engine, last, queries.data(), n, {.top_k = 4}) ==
                  all.Slice(0, n, run.queries));
    }
  }
}

TEST(ExactWindow, ManyTilesGoThroughTheSplitsOfTheWindow) {
  const LayerShape shape = {1, 1, 2, 2, 1.0F};
  const auto engine = MakeWindowed(shape, 20000);
  const std::int64_t position = 3 * 16384 + 77;
  const std::int64_t count = 65 * kGemmMaxRows;
  const Tokens tokens = RandomTokens(shape, position, 75);
  const std::vector<float> queries = RandomValues(count * shape.query_row(), 76, 3.0F);
  const Snapshot snapshot = At(*engine, tokens, position);
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  Answers unread = Unwritten(shape, count);
  plan->Reset(Group(snapshot, queries.data(), count), View(unread));
  ASSERT_EQ(plan->chains(), 65);
  plan->Reset(Group(snapshot, queries.data(), 200), View(unread));
  ASSERT_EQ(plan->chains(), 2 * 3) << "tiles of the window's splits";
  const Asked asked = {.top_k = 5};
  const Answers all = Attend(*engine, snapshot, queries.data(), count, asked);
  EXPECT_TRUE(Attend(*engine, snapshot, queries.data(), 200, asked) == all.Slice(0, 200, count));
}

TEST(ExactWindow, AHugeOutlierThatLeftLeavesNoTrace) {
  const std::int64_t window = 150;
  const auto engine = MakeWindowed(kGrouped, window);
  const Tokens plain = RandomTokens(kGrouped, 700, 77);
  Tokens outlier = plain;
  std::fill_n(outlier.values.begin() + 100 * kGrouped.value_row(), kGrouped.value_row(), 1e30F);
  std::fill_n(outlier.keys.begin() + 100 * kGrouped.key_row(), kGrouped.key_row(), 1e30F);
  const std::vector<float> queries = RandomValues(4 * kGrouped.query_row(), 78);
  for (std::int64_t position = 101; position < 700; ++position) {
    EXPECT_EQ(Attend(*engine, At(*engine, outlier, position), queries.data(), 4) ==
                  Attend(*engine, At(*engine, plain, position), queries.data(), 4),
              position > 100 + window)
        << position;
  }
}

// Streams `tokens` tokens, `piece` at a time, and looks at every state.
template <typename See>
void StreamTokens(const Engine& engine, std::int64_t tokens, std::int64_t piece, const See& see) {
  const LayerShape& shape = engine.shape();
  const std::vector<float> keys = RandomValues(piece * shape.key_row(), 79);
  const std::vector<float> values = RandomValues(piece * shape.value_row(), 80);
  Scratch scratch;
  std::shared_ptr<const LayerState> state = EmptyLayer(engine);
  while (state->position() < tokens) {
    LayerDraft draft(engine, state);
    ASSERT_TRUE(draft
                    .Append({piece,
                             {DataType::kF32, keys.data(), piece * shape.key_row()},
                             {DataType::kF32, values.data(), piece * shape.value_row()},
                             nullptr},
                            0, piece, nullptr, scratch)
                    .ok());
    const std::int64_t charged = engine.AppendBytes(state->position(), piece);
    const std::int64_t before = state->bytes();
    state = draft.Finish();
    EXPECT_LE(state->bytes() - before, charged);
    see(*state);
  }
}

TEST(ExactWindow, MemoryIsBoundedByTheWindow) {
  for (const std::int64_t window : {1, 64, 100, 1000, 5000, 20000}) {
    for (const DataType storage : {DataType::kF32, DataType::kBf16}) {
      const auto engine = MakeWindowed(kGrouped, window, storage);
      std::int64_t largest = 0;
      for (const std::int64_t piece : {63, 2000}) {
        StreamTokens(*engine, 100'000, piece,
                     [&](const LayerState& state) { largest = std::max(largest, state.bytes()); });
      }
      EXPECT_LE(largest,
                engine->fixed_bytes() + (window + window / 2 + 192) * engine->bytes_per_token())
          << window;
    }
  }
}

// The allocator's own count: blocks that no state shows must not be held elsewhere.
TEST(ExactWindow, MemoryOfBlocksThatLeftIsGivenBack) {
  const LayerShape shape = {1, 1, 64, 64, 0.125F};
  const std::int64_t window = 4096;
  const auto engine = MakeWindowed(shape, window);
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
  };
  const std::int64_t start = allocated();
  std::int64_t largest = 0;
  StreamTokens(*engine, 400'000, 500,
               [&](const LayerState&) { largest = std::max(largest, allocated() - start); });
  EXPECT_LE(largest, 3 * window * engine->bytes_per_token());
}

TEST(ExactWindow, PlansOfWindowsKeepNoMoreThanTheirSplits) {
  const LayerShape shape = {1, 1, 64, 64, 0.125F};
  const auto all = MakeWindowed(shape, 0);
  const auto windowed = MakeWindowed(shape, 20000);
  EXPECT_EQ(windowed->PlanBytes(1000, 10, 0), all->PlanBytes(1000, 10, 0));
  EXPECT_EQ(windowed->PlanBytes(std::int64_t{1} << 40, 10, 0),
            all->PlanBytes(3 * kSplitBlocks * kBlockTokens, 10, 0));
}

}  // namespace
}  // namespace attnd::engine::exact_test
