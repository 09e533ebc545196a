// States share memory; none may see what another one writes.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "engine/exact/segment.h"
#include "gtest/gtest.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::exact_test {
namespace {

constexpr LayerShape kShape = {2, 2, 8, 8, 0.5F};

// The state after `sealed` tokens without a tail.
Snapshot SealedOnly(std::shared_ptr<SealedState> state, std::int64_t sealed) {
  Snapshot snapshot;
  snapshot.sealed = std::move(state);
  snapshot.sealed_tokens = sealed;
  return snapshot;
}

TEST(ExactSegmentTest, BlocksFollowOneAnotherWithoutGaps) {
  for (const std::int64_t full : {16, 64, 256}) {
    BlockPlace expected;
    for (std::int64_t block = 0; block < 5 * full; ++block) {
      const BlockPlace place = PlaceOfBlock(block, full);
      EXPECT_EQ(place.segment, expected.segment) << block;
      EXPECT_EQ(place.offset, expected.offset) << block;
      if (++expected.offset == SegmentBlocks(expected.segment, full)) {
        expected = {expected.segment + 1, 0};
      }
    }
  }
  std::vector<std::int64_t> blocks;
  for (std::int64_t segment = 0; segment < 8; ++segment) {
    blocks.push_back(SegmentBlocks(segment, 16));
  }
  EXPECT_EQ(blocks, (std::vector<std::int64_t>{1, 1, 2, 4, 8, 16, 16, 16}));
}

TEST(ExactSegmentTest, FullSegmentsFillALargePageWhereTheyCan) {
  EXPECT_EQ(FullSegmentBlocks(1 << 10), 256);
  EXPECT_EQ(FullSegmentBlocks(32 << 10), 64);  // one kv-head, d = 64, f32
  EXPECT_EQ(FullSegmentBlocks((32 << 10) + 1), 64);
  EXPECT_EQ(FullSegmentBlocks((32 << 10) - 1), 128);
  EXPECT_EQ(FullSegmentBlocks(512 << 10), 16);
}

TEST(ExactStateTest, TwoClonesThatBothSealDoNotCorruptEachOther) {
  const auto engine = MakeExact(kShape);
  // 10 blocks lie in the middle of the segment of blocks 8 to 15.
  Tokens left = RandomTokens(kShape, 1500, 31);
  Tokens right = RandomTokens(kShape, 1500, 32);
  const std::int64_t shared = 640;
  std::copy_n(left.keys.begin(), shared * kShape.key_row(), right.keys.begin());
  std::copy_n(left.values.begin(), shared * kShape.value_row(), right.values.begin());
  for (std::int64_t t = 0; t < 1500; t += 5) {
    left.Mask(t);
    if (t < shared) right.Mask(t);
  }
  const auto base = engine->NewState();
  SealTokens(*engine, left, 0, shared, *base);
  const auto left_state = engine->Clone(*base);
  const auto right_state = engine->Clone(*base);
  SealTokens(*engine, left, shared, 704, *left_state);
  SealTokens(*engine, right, shared, 1280, *right_state);
  SealTokens(*engine, left, 704, 1280, *left_state);

  const std::vector<float> queries = RandomValues(7 * kShape.query_row(), 33);
  const auto answers = [&](const std::shared_ptr<SealedState>& state, std::int64_t sealed) {
    return Attend(*engine, SealedOnly(state, sealed), queries.data(), 7);
  };
  const auto alone = [&](const Tokens& tokens, std::int64_t sealed) {
    const auto state = engine->NewState();
    SealTokens(*engine, tokens, 0, sealed, *state);
    return answers(state, sealed);
  };
  EXPECT_TRUE(answers(base, shared) == alone(left, shared));
  EXPECT_TRUE(answers(left_state, 1280) == alone(left, 1280));
  EXPECT_TRUE(answers(right_state, 1280) == alone(right, 1280));
}

TEST(ExactStateTest, ADiscardedDraftLeavesNothingBehind) {
  const auto engine = MakeExact(kShape, DataType::kBf16);
  Tokens kept = RandomTokens(kShape, 640, 34);
  Tokens discarded = RandomTokens(kShape, 640, 35);
  kept.Round(*engine);
  discarded.Round(*engine);
  const auto base = engine->NewState();
  SealTokens(*engine, kept, 0, 192, *base);
  {
    const auto draft = engine->Clone(*base);
    SealTokens(*engine, discarded, 192, 640, *draft);
  }
  const auto next = engine->Clone(*base);
  SealTokens(*engine, kept, 192, 640, *next);
  const auto alone = engine->NewState();
  SealTokens(*engine, kept, 0, 640, *alone);
  const std::vector<float> queries = RandomValues(3 * kShape.query_row(), 36);
  EXPECT_TRUE(Attend(*engine, SealedOnly(next, 640), queries.data(), 3) ==
              Attend(*engine, SealedOnly(alone, 640), queries.data(), 3));
}

TEST(ExactStateTest, ClonesShareMemory) {
  const auto engine = MakeExact(kShape);
  const Tokens tokens = RandomTokens(kShape, 40 * kBlockTokens, 37);
  const auto base = engine->NewState();
  EXPECT_EQ(base->bytes(), 0);
  SealTokens(*engine, tokens, 0, 32 * kBlockTokens, *base);
  EXPECT_EQ(base->bytes(),
            32 * kBlockTokens * engine->bytes_per_token() - std::int64_t{32} * (64 - 8));
  const auto clone = engine->Clone(*base);
  EXPECT_EQ(clone->bytes(), base->bytes());
  SealTokens(*engine, tokens, 32 * kBlockTokens, 33 * kBlockTokens, *clone);
  EXPECT_EQ(clone->bytes(), 2 * base->bytes());
  SealTokens(*engine, tokens, 33 * kBlockTokens, 40 * kBlockTokens, *clone);
  EXPECT_EQ(clone->bytes(), 2 * base->bytes());
}

TEST(ExactStateTest, ReadersKeepTheirAnswersWhileAWriterExtends) {
  const auto engine = MakeExact(kShape);
  const std::int64_t total = 60 * kBlockTokens;
  const Tokens tokens = RandomTokens(kShape, total, 38);
  const std::vector<float> queries = RandomValues(5 * kShape.query_row(), 39);
  std::shared_ptr<SealedState> state = engine->NewState();
  SealTokens(*engine, tokens, 0, 21 * kBlockTokens, *state);
  const std::shared_ptr<SealedState> seen = state;
  const Answers expected = Attend(*engine, SealedOnly(seen, 21 * kBlockTokens), queries.data(), 5);
  std::atomic<bool> done = false;
  std::atomic<int> rounds = 0;
  std::thread reader([&] {
    while (!done || rounds < 3) {
      EXPECT_TRUE(Attend(*engine, SealedOnly(seen, 21 * kBlockTokens), queries.data(), 5) ==
                  expected);
      ++rounds;
    }
  });
  for (std::int64_t from = 21 * kBlockTokens; from < total; from += kBlockTokens) {
    state = engine->Clone(*state);
    SealTokens(*engine, tokens, from, from + kBlockTokens, *state);
  }
  done = true;
  reader.join();
  const auto alone = engine->NewState();
  SealTokens(*engine, tokens, 0, total, *alone);
  EXPECT_TRUE(Attend(*engine, SealedOnly(state, total), queries.data(), 5) ==
              Attend(*engine, SealedOnly(alone, total), queries.data(), 5));
}

// For ThreadSanitizer: what lies beyond a reader's count cannot change its answer, but touching it
// would be a race.
TEST(ExactStateTest, ReadersTouchNoTailRowsBeyondTheirCount) {
  const auto engine = MakeExact(kShape);
  const Tokens tokens = RandomTokens(kShape, 10, 41);
  const Snapshot snapshot = At(*engine, tokens, 10);
  const std::vector<float> queries = RandomValues(20 * kShape.query_row(), 42);
  const Answers expected = Attend(*engine, snapshot, queries.data(), 20);
  std::thread writer([&] {
    Tail& tail = *snapshot.tail;
    std::fill(tail.keys.data() + 10 * kShape.key_row(), tail.keys.data() + tail.keys.size(), 1.0F);
    std::fill(tail.values.data() + 10 * kShape.value_row(), tail.values.data() + tail.values.size(),
              1.0F);
  });
  EXPECT_TRUE(Attend(*engine, snapshot, queries.data(), 20) == expected);
  writer.join();
  EXPECT_TRUE(Attend(*engine, snapshot, queries.data(), 20) == expected);
}

TEST(ExactStateTest, Bf16StorageRoundsToNearestEven) {
  const auto engine = MakeExact(kShape, DataType::kBf16);
  EXPECT_TRUE(engine->rounds_storage());
  // 1 + 2^-8 is halfway between 1 and 1 + 2^-7; 1 + 3 * 2^-8 between 1 + 2^-7 and 1 + 2^-6.
  std::vector<float> values = {1.0F, 1.00390625F, 1.01171875F, -1.0040F, 0.0F, 3e-39F};
  engine->RoundToStorage(values.data(), 5);
  EXPECT_EQ(values, (std::vector<float>{1.0F, 1.0F, 1.015625F, -1.0078125F, 0.0F, 3e-39F}));
  std::vector<float> many = RandomValues(5000, 40);
  engine->RoundToStorage(many.data(), 5000);
  const std::vector<float> once = many;
  engine->RoundToStorage(many.data(), 5000);
  EXPECT_EQ(many, once);
  float largest = 3.4028235e38F;
  engine->RoundToStorage(&largest, 1);
  EXPECT_TRUE(std::isinf(largest));  // for the caller to refuse
  EXPECT_FALSE(MakeExact(kShape)->rounds_storage());
}

}  // namespace
}  // namespace attnd::engine::exact_test
