// The exact engine gives back the rows that it sealed, and a state that is made of them is the same
// although it begins where a window does.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine_config.h"
#include "engine/exact/exact_engine.h"
#include "engine/scratch.h"
#include "gtest/gtest.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/kept_rows.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr LayerShape kShape = {.kv_heads = 2, .query_heads = 2, .key_dim = 3, .value_dim = 5};

// Seals 20 blocks and reads those that are kept.
void ExpectRowsComeBack(DataType storage, std::int64_t window, std::int64_t first_kept) {
  const std::unique_ptr<const Engine> engine =
      MakeExactEngine(kShape, ExactConfig{.storage = storage}, window).value();
  ASSERT_TRUE(engine->keeps_rows());
  constexpr std::int64_t kBlocks = 20;
  const auto keys = static_cast<std::size_t>(kBlockTokens * kShape.key_row());
  const auto values = static_cast<std::size_t>(kBlockTokens * kShape.value_row());
  std::vector<std::vector<float>> sealed;
  const std::shared_ptr<SealedState> state = engine->NewState();
  Scratch scratch;
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    std::vector<float>& rows = sealed.emplace_back(keys + values);
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] = static_cast<float>(b) + 0.37F * static_cast<float>(i);
    engine->RoundToStorage(rows.data(), static_cast<std::int64_t>(rows.size()));
    const Block block = {
        .keys = rows.data(), .values = rows.data() + keys, .valid = ~static_cast<RowMask>(b)};
    ASSERT_TRUE(engine->Seal(*state, b * kBlockTokens, std::span(&block, 1), scratch).ok());
  }
  ASSERT_EQ(engine->FirstKeptBlock(*state), first_kept);
  for (std::int64_t b = first_kept; b < kBlocks; ++b) {
    std::vector<float> rows(keys + values);
    EXPECT_EQ(engine->ReadBlock(*state, b, rows.data(), rows.data() + keys),
              ~static_cast<RowMask>(b));
    EXPECT_EQ(rows, sealed[static_cast<std::size_t>(b)]) << b;
  }
}

TEST(ExactKeptRows, ComeBackAsStored) {
  ExpectRowsComeBack(DataType::kF32, 0, 0);
  ExpectRowsComeBack(DataType::kBf16, 0, 0);
}

TEST(ExactKeptRows, OfAWindowAreThoseThatItSees) {
  ExpectRowsComeBack(DataType::kF32, 256, 16);
  ExpectRowsComeBack(DataType::kBf16, 256, 16);
}

// Restored at every position of `positions`, and taken on from each to the next.
void ExpectSameAfterRestoring(DataType storage, std::int64_t window,
                              const std::vector<std::int64_t>& positions) {
  const std::unique_ptr<const Engine> engine =
      MakeExactEngine(kShape, ExactConfig{.storage = storage}, window).value();
  exact_test::Tokens tokens = exact_test::RandomTokens(kShape, positions.back(), 92);
  for (std::int64_t t = 4; t < tokens.count; t += 6) tokens.Mask(t);
  tokens.Round(*engine);
  const std::vector<float> queries = RandomValues(3 * kShape.query_row(), 93);
  const auto answers = [&](const exact_test::Snapshot& snapshot) {
    return exact_test::Attend(*engine, snapshot, queries.data(), 3, {.top_k = 3});
  };
  for (std::size_t i = 0; i + 1 < positions.size(); ++i) {
    SCOPED_TRACE(testing::Message() << window << " at " << positions[i]);
    exact_test::Snapshot snapshot = exact_test::At(*engine, tokens, positions[i]);
    const std::int64_t blocks = snapshot.sealed_tokens / kBlockTokens;
    const std::int64_t first = engine->FirstKeptBlock(*snapshot.sealed);
    const std::shared_ptr<SealedState> restored = Restored(*engine, *snapshot.sealed, blocks);
    EXPECT_EQ(engine->FirstKeptBlock(*restored), first);
    EXPECT_EQ(restored->bytes(), snapshot.sealed->bytes());
    for (std::int64_t b = first; b < blocks; ++b) ExpectKept(*engine, tokens, *restored, b);
    const exact_test::Answers before = answers(snapshot);
    snapshot.sealed = restored;
    EXPECT_TRUE(answers(snapshot) == before);

    exact_test::Snapshot later = exact_test::At(*engine, tokens, positions[i + 1]);
    const exact_test::Answers after = answers(later);
    const std::int64_t later_bytes = later.sealed->bytes();
    // A draft that is dropped takes the memory that comes next.
    exact_test::SealTokens(*engine, tokens, snapshot.sealed_tokens, later.sealed_tokens,
                           *engine->Clone(*restored));
    later.sealed = engine->Clone(*restored);
    exact_test::SealTokens(*engine, tokens, snapshot.sealed_tokens, later.sealed_tokens,
                           *later.sealed);
    EXPECT_EQ(later.sealed->bytes(), later_bytes);
    EXPECT_TRUE(answers(later) == after);
  }
}

TEST(ExactKeptRows, MakeAStateOfTheSameBits) {
  for (const DataType storage : {DataType::kF32, DataType::kBf16}) {
    ExpectSameAfterRestoring(storage, 0, {0, 1, 63, 64, 65, 700, 2000});
  }
}

TEST(ExactKeptRows, MakeAWindowOfTheSameBits) {
  for (const DataType storage : {DataType::kF32, DataType::kBf16}) {
    for (const std::int64_t window : {1, 64, 65, 300, 1000, 5000}) {
      ExpectSameAfterRestoring(storage, window,
                               {0, 1, 65, 300, 301, 1000, 1089, 2300, 4097, 9000, 9700});
    }
  }
}

// What was said to be its first block is not where its window begins; whoever restores asks.
TEST(ExactKeptRows, AStateThatBeginsTooLateSaysSo) {
  for (const std::int64_t window : {0, 256, 100000}) {
    const std::unique_ptr<const Engine> engine = MakeExactEngine(kShape, {}, window).value();
    const exact_test::Tokens tokens = exact_test::RandomTokens(kShape, 40 * kBlockTokens, 94);
    const std::shared_ptr<SealedState> state = engine->NewStateAt(30);
    for (std::int64_t b = 30; b < 32; ++b) {
      exact_test::SealTokens(*engine, tokens, b * kBlockTokens, (b + 1) * kBlockTokens, *state);
      EXPECT_LT(engine->FirstKeptBlock(*state), 30) << window;
      ExpectKept(*engine, tokens, *state, b);
    }
  }
}

}  // namespace
}  // namespace attnd::engine
