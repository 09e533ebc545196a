// What a state holds at every position: each token once, in the spans that the schedule says.
#include "engine/kde/index/index_state.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/block.h"
#include "engine/kde/index/upkeep_schedule.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::kde_test {
namespace {

constexpr LayerShape kShape = {1, 1, 2, 2, 1.0F};

// Every token of the span that is not masked has a place, and the key that it came with.
void ExpectTokens(const Tokens& tokens, const IndexSpan& span) {
  const HeadIndex& index = *span.heads.front();
  std::int64_t keys = 0;
  for (std::int64_t token = 0; token < span.span.tokens; ++token) {
    const std::int64_t position = span.span.first + token;
    const std::int32_t place = index.place(token);
    ASSERT_EQ(place >= 0, tokens.mask[Size(position)] != 0) << position;
    if (place < 0) continue;
    ++keys;
    const std::int64_t row = place % kBlockTokens;
    ASSERT_EQ(index.tokens_of(place / kBlockTokens)[row], token);
    const BlockView<float>& leaf = index.leaf(place / kBlockTokens);
    for (std::int64_t c = 0; c < 2; ++c) {
      ASSERT_EQ(leaf.keys_t[c * kBlockTokens + row], tokens.keys[Size(position * 2 + c)]);
      ASSERT_EQ(leaf.values[row * index.layout().padded_value_dim + c],
                tokens.values[Size(position * 2 + c)]);
    }
  }
  ASSERT_EQ(keys, index.keys());
}

// A span of the ladder once crossed the end of the next main span, and its tokens counted twice.
TEST(IndexStateTest, HoldsEachTokenOnceInTheSpansOfTheSchedule) {
  const std::int64_t last = 67584;
  Tokens tokens = exact_test::RandomTokens(kShape, last, 61);
  for (std::int64_t t = 0; t < last; t += 7) tokens.Mask(t);
  const auto engine = MakeKde(kShape);
  const auto sealed_state = engine->NewState();
  const auto& state = static_cast<const IndexState&>(*sealed_state);
  std::vector<SpanBounds> before;
  for (std::int64_t sealed = 0; sealed < last; sealed += kBlockTokens) {
    exact_test::SealTokens(*engine, tokens, sealed, sealed + kBlockTokens, *sealed_state);
    std::vector<SpanBounds> spans;
    for (const auto& span : state.spans()) spans.push_back(span->span);
    ASSERT_EQ(spans, VisibleSpans(sealed + kBlockTokens)) << sealed;
    // The first block, then without gaps from the spans' end on.
    std::int64_t next = spans.empty() ? 0 : spans.back().end();
    for (const auto& block : state.raw_blocks()) {
      if (block == state.raw_blocks().front()) {
        ASSERT_EQ(block->first, 0);
        next = std::max(next, kBlockTokens);
        continue;
      }
      ASSERT_EQ(block->first, next) << sealed;
      next += kBlockTokens;
    }
    ASSERT_EQ(next, sealed + kBlockTokens);
    if (spans != before) {
      for (const auto& span : state.spans()) ExpectTokens(tokens, *span);
    }
    before = spans;
  }
}

// Short spans do not last: what they would learn costs more than it saves.
TEST(IndexStateTest, ShortSpansTakeWhatTheMainOneLearned) {
  const LayerShape shape = {1, 1, 16, 16, 0.3F};
  const std::int64_t count = 4096 + 1024 + 256;
  const auto engine = MakeKde(shape);
  const Snapshot snapshot = exact_test::At(*engine, ClusteredTokens(shape, count, 40, 63), count);
  const auto& spans = static_cast<const IndexState&>(*snapshot.sealed).spans();
  ASSERT_EQ(spans.size(), 3U);
  const HeadIndex& main = *spans.front()->heads.front();
  EXPECT_NE(main.metric(), nullptr);
  EXPECT_GT(main.errors().keys, 0);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    const HeadIndex& index = *spans[i]->heads.front();
    EXPECT_EQ(spans[i]->span.tokens, i == 1 ? 1024 : 256);
    EXPECT_EQ(index.metric(), nullptr);
    EXPECT_EQ(index.errors().keys, main.errors().keys);
    EXPECT_EQ(index.errors().errors, main.errors().errors);
  }
}

// Values that are all alike in the main span taught it no errors, and those of the spans behind it
// were stated as none.
TEST(IndexStateTest, ShortSpansLearnWhereTheMainOneHadNothingToLearnFrom) {
  const LayerShape shape = {1, 1, 16, 16, 0.3F};
  const std::int64_t count = 4096 + 1024 + 256;
  const auto engine = MakeKde(shape);
  for (const bool masked : {false, true}) {
    Tokens tokens = ClusteredTokens(shape, count, 40, 63);
    for (std::int64_t t = 0; t < 3968; ++t) {
      if (masked) tokens.Mask(t);
      std::fill_n(tokens.values.begin() + t * shape.value_row(), shape.value_row(), 1.0F);
    }
    const Snapshot snapshot = exact_test::At(*engine, tokens, count);
    const auto& spans = static_cast<const IndexState&>(*snapshot.sealed).spans();
    ASSERT_EQ(spans.size(), 3U);
    for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
      const ErrorTable& errors = spans[i]->heads.front()->errors();
      EXPECT_EQ(errors.keys, spans[i]->span.tokens) << masked;
      EXPECT_GT(errors.errors.front(), 0.0F) << masked;
      EXPECT_GT(errors.spread, 0.0F) << masked;
    }
  }
}

// Keys whose squares leave f32, in spans that were clustered before and are merged.
TEST(IndexStateTest, HugeKeysAreMergedLikeOthers) {
  const std::int64_t count = 8192 + 200;
  Tokens tokens = ClusteredTokens(kShape, count, 40, 64);
  tokens.keys[Size(6000 * kShape.key_row())] = 3e16F;
  const auto engine = MakeKde(kShape);
  const Snapshot snapshot = exact_test::At(*engine, tokens, count);
  const auto& state = static_cast<const IndexState&>(*snapshot.sealed);
  for (const auto& span : state.spans()) ExpectTokens(tokens, *span);
}

// The server admits appends by AppendBytes and states what tokens cost by bytes_per_token.
TEST(IndexStateTest, HoldsNoMoreMemoryThanItSays) {
  for (const LayerShape& shape : {LayerShape{1, 1, 64, 64, 1.0F}, LayerShape{2, 2, 8, 40, 1.0F},
                                  LayerShape{1, 1, 4, 4, 1.0F}}) {
    const auto engine = MakeKde(shape);
    const std::int64_t last = 20480;
    const Tokens tokens = exact_test::RandomTokens(shape, last, 62);
    const auto state = engine->NewState();
    const std::int64_t step = 7 * kBlockTokens;
    std::int64_t at_rest = 0;
    for (std::int64_t sealed = 0; sealed + step <= last; sealed += step) {
      const std::int64_t before = state->bytes();
      exact_test::SealTokens(*engine, tokens, sealed, sealed + step, *state);
      // The open block is sealed when its successor arrives.
      ASSERT_LE(state->bytes(), before + engine->AppendBytes(sealed + kBlockTokens, step))
          << sealed;
      if (SpansEndingAt(sealed + step).empty() && sealed > 4096 &&
          static_cast<const IndexState&>(*state).bytes() < before + step * 4096) {
        ++at_rest;
        const std::int64_t rest =
            engine->fixed_bytes() + (sealed + step) * engine->bytes_per_token();
        ASSERT_LE(state->bytes(),
                  rest + IndexState::UpkeepBytes(BlockLayout(shape), sealed, sealed + step));
      }
    }
    EXPECT_GE(at_rest, 10);
  }
}

// At rest, an index adds little to raw keys and values of whole vectors.
TEST(IndexStateTest, IndexAddsAThirdOfKeysAndValuesAtMost) {
  for (const LayerShape& shape : {LayerShape{1, 1, 64, 64, 1.0F}, LayerShape{2, 4, 128, 128, 1.0F},
                                  LayerShape{1, 1, 100, 100, 1.0F}}) {
    const auto engine = MakeKde(shape);
    const std::int64_t raw =
        static_cast<std::int64_t>(sizeof(float)) * (shape.key_row() + shape.value_row());
    EXPECT_LE(engine->bytes_per_token(), raw * 135 / 100);
    const std::int64_t tokens = 8192 - kBlockTokens;  // a main span has just become visible
    const auto state = engine->NewState();
    exact_test::SealTokens(*engine, exact_test::RandomTokens(shape, tokens, 63), 0, tokens, *state);
    EXPECT_LE(state->bytes(), tokens * raw * 135 / 100);
    EXPECT_LE(state->bytes(), engine->fixed_bytes() + tokens * engine->bytes_per_token());
  }
}

}  // namespace
}  // namespace attnd::engine::kde_test
