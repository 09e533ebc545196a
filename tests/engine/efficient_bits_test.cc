// Same tokens, same bits: what an answer of Efficient Attention may not depend on, for keys that
// need no power of two and for keys that do.
#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "engine/efficient/ref_efficient.h"
#include "engine/gemm.h"
#include "engine/layer_stream.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

constexpr std::int64_t kPosition = 64 * 9 + 23;

// How far key numbers spread.
enum class Keys {
  kOrdinary,   // no number has steps
  kOutlier,    // one column, now and then
  kSpread,     // in all columns, growing and shrinking
  kSameSteps,  // a column whose numbers all have the same steps, but not 0
};

class EfficientBits : public testing::TestWithParam<Keys> {
 protected:
  EfficientBits()
      : stream_(MakeStream(shape_, kPosition + 64, 21)),
        engine_(MakeLinear(shape_, Config("efficient"))) {
    for (std::int64_t token = 0; token < stream_.tokens; ++token) {
      for (std::int64_t i = 0; i < shape_.key_row(); ++i) {
        Move(token, i, &stream_.keys[Size(token * shape_.key_row() + i)]);
      }
    }
    for (const std::int64_t token : {0, 5, 64, 70, 200, 580, 590}) stream_.Mask(token);
  }

  static void Move(std::int64_t token, std::int64_t i, float* key) {
    switch (GetParam()) {
      case Keys::kOrdinary:
        return;
      case Keys::kOutlier:
        if (i == 30 && token % 97 == 85) *key = 60.0F + static_cast<float>(token);
        return;
      case Keys::kSpread:
        *key *= token % 61 == 50 ? 60.0F : 12.0F;
        return;
      case Keys::kSameSteps:
        if (i % 5 == 0) *key = i % 2 == 0 ? 44.0F + *key : -90.0F + *key;
        return;
    }
  }

  Answers Row(const Answers& answers, std::int64_t query) const {
    const auto cut = [query](const auto& all, std::int64_t row) {
      const auto first = all.begin() + query * row;
      return std::decay_t<decltype(all)>(first, first + row);
    };
    return {cut(answers.outputs, shape_.output_row()), cut(answers.numerators, shape_.output_row()),
            cut(answers.denominators, shape_.query_heads),
            cut(answers.exponents, shape_.query_heads), cut(answers.flags, shape_.query_heads)};
  }

  LayerShape shape_ = {2, 8, 24, 20, 0.3F};
  Stream stream_;
  std::unique_ptr<const Engine> engine_;
};

TEST_P(EfficientBits, GroupingOfSealedBlocksDoesNotMatter) {
  const std::vector<float> rows = NormalNumbers(7 * shape_.query_row(), 22);
  const Answers expected = Attend(*engine_, At(*engine_, stream_, kPosition), rows.data(), 7);
  EXPECT_EQ(expected.flags, std::vector<std::uint8_t>(56, 0));
  for (const bool features_from_tail : {false, true}) {
    for (const std::vector<std::int64_t>& spans :
         {std::vector<std::int64_t>{1}, {2}, {1, 3}, {4, 5}, {8, 1}}) {
      const Snapshot snapshot = At(*engine_, stream_, kPosition, {spans, features_from_tail, true});
      EXPECT_TRUE(Attend(*engine_, snapshot, rows.data(), 7) == expected) << spans[0];
    }
  }
}

TEST_P(EfficientBits, RowsAfterThePositionAreNeverRead) {
  const std::vector<float> rows = NormalNumbers(3 * shape_.query_row(), 23);
  for (const std::int64_t position : {1, 2, 16, 17, 64, 65, 66, 100, 590}) {
    Cutting clean;
    clean.poison_later = false;
    EXPECT_TRUE(Attend(*engine_, At(*engine_, stream_, position), rows.data(), 3) ==
                Attend(*engine_, At(*engine_, stream_, position, clean), rows.data(), 3))
        << position;
  }
}

TEST_P(EfficientBits, NumberOfQueriesDoesNotMatter) {
  const std::int64_t most = 300;
  const std::vector<float> rows = NormalNumbers(most * shape_.query_row(), 24);
  const Snapshot snapshot = At(*engine_, stream_, kPosition);
  const Answers all = Attend(*engine_, snapshot, rows.data(), most);
  for (const std::int64_t count : {1, 2, 3, 4, 5, 7, 9, 16, 17, 33, 48, 64, 65, 192, 193}) {
    // The last rows of the long call, so that they also stand elsewhere in their tile.
    const std::int64_t first = most - count;
    const Answers some =
        Attend(*engine_, snapshot, rows.data() + first * shape_.query_row(), count);
    for (std::int64_t query = 0; query < count; query += std::max<std::int64_t>(1, count / 9)) {
      ASSERT_TRUE(Row(some, query) == Row(all, first + query))
          << count << " queries, query " << query;
    }
  }
}

TEST_P(EfficientBits, StepsAgreeWithAttendsAtEveryPosition) {
  for (const std::int64_t block : {0, 1, 9}) {
    for (const std::int64_t first_cut : {1, 24}) {
      const std::int64_t count = 65 - first_cut;
      const std::int64_t first = 64 * block + first_cut;
      const std::vector<float> rows = NormalNumbers(count * shape_.query_row(), 25);
      const Snapshot last = At(*engine_, stream_, first + count - 1);
      ASSERT_EQ(last.rows, 64);
      const Answers steps = AttendCausally(*engine_, last, rows.data(), count, first_cut);
      for (std::int64_t query = 0; query < count; ++query) {
        const Answers attend = Attend(*engine_, At(*engine_, stream_, first + query),
                                      rows.data() + query * shape_.query_row(), 1);
        ASSERT_TRUE(Row(steps, query) == attend) << block << " " << query;
      }
    }
  }
}

// A later key of more steps once in the tile must not round what earlier queries see.
TEST_P(EfficientBits, AHugeLaterKeyDoesNotReachEarlierQueries) {
  std::fill_n(stream_.keys.begin() + 9 * shape_.key_row(), shape_.key_row(), 3e38F);
  const std::vector<float> rows = NormalNumbers(10 * shape_.query_row(), 28, 10.0F);
  const Answers steps = AttendCausally(*engine_, At(*engine_, stream_, 10), rows.data(), 10, 1);
  for (std::int64_t query = 0; query < 10; ++query) {
    EXPECT_TRUE(Row(steps, query) == Attend(*engine_, At(*engine_, stream_, query + 1),
                                            rows.data() + query * shape_.query_row(), 1))
        << query;
  }
}

TEST_P(EfficientBits, ChainsMayRunOnDifferentThreads) {
  const std::int64_t count = 300;
  const std::vector<float> rows = NormalNumbers(count * shape_.query_row(), 29);
  const Snapshot snapshot = At(*engine_, stream_, kPosition);
  const Answers expected = Attend(*engine_, snapshot, rows.data(), count);
  Answers answers = expected;
  std::fill(answers.outputs.begin(), answers.outputs.end(), -7.0F);
  AnswerView view;
  view.outputs = answers.outputs.data();
  QueryGroup group;
  group.sealed = snapshot.sealed.get();
  group.sealed_tokens = snapshot.sealed_tokens;
  group.tail = snapshot.view();
  group.queries = rows.data();
  group.count = count;
  const std::unique_ptr<AttendPlan> plan = engine_->NewPlan();
  plan->Reset(group, view);
  ASSERT_GT(plan->chains(), 4);
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Scratch scratch;
      for (std::int64_t chain = t; chain < plan->chains(); chain += 4) {
        while (!plan->Run(chain, scratch)) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(answers == expected);
}

// The thread sanitizer sees a read of a row that the layer's writer may be writing.
TEST_P(EfficientBits, WriterOfLaterRowsAndReadersDoNotMeet) {
  constexpr std::int64_t kVisible = 30;
  const Snapshot snapshot = At(*engine_, stream_, 64 + kVisible);
  const std::vector<float> rows = NormalNumbers(3 * shape_.query_row(), 33);
  const Answers expected = Attend(*engine_, snapshot, rows.data(), 3);
  Tail& tail = *snapshot.tail;
  std::thread writer([&] {
    Scratch scratch;
    for (std::int64_t row = kVisible; row < kBlockTokens; ++row) {
      const float* key = stream_.keys.data() + (64 + row) * shape_.key_row();
      std::copy_n(key, shape_.key_row(), tail.keys.data() + row * shape_.key_row());
      std::copy_n(stream_.values.data() + (64 + row) * shape_.value_row(), shape_.value_row(),
                  tail.values.data() + row * shape_.value_row());
      engine_->EncodeTail(*snapshot.sealed, {64, row, 1, ~RowMask{0}}, tail, scratch);
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Attend(*engine_, snapshot, rows.data(), 3) == expected);
    Scratch scratch;
    EXPECT_TRUE(engine_->CheckTail(*snapshot.sealed, snapshot.view(), scratch).ok());
  }
  writer.join();
  EXPECT_TRUE(Attend(*engine_, snapshot, rows.data(), 3) == expected);
}

TEST_P(EfficientBits, CloneLeavesTheOriginalAsItWas) {
  const std::vector<float> rows = NormalNumbers(shape_.query_row(), 30);
  const Snapshot snapshot = At(*engine_, stream_, 65);
  const Answers before = Attend(*engine_, snapshot, rows.data(), 1);
  const std::shared_ptr<SealedState> copy = engine_->Clone(*snapshot.sealed);
  // Steps of its own.
  const std::vector<float> keys(Size(64 * shape_.key_row()), 1000.0F);
  const Block block = {keys.data(), stream_.values.data(), ~RowMask{0}, nullptr, nullptr};
  Scratch scratch;
  ASSERT_TRUE(engine_->Seal(*copy, 64, {&block, 1}, scratch).ok());
  EXPECT_TRUE(Attend(*engine_, snapshot, rows.data(), 1) == before);
}

// Token by token in scalar code.
TEST_P(EfficientBits, EngineHasTheBitsOfTheRecurrence) {
  if (!GemmHonoursChain()) GTEST_SKIP() << "this oneDNN does not keep the chain contract";
  const std::vector<float> rows = NormalNumbers(shape_.query_row(), 32);
  std::vector<RefEfficientHead> heads(Size(shape_.kv_heads),
                                      RefEfficientHead(shape_.key_dim, shape_.value_dim));
  for (std::int64_t token = 0; token < stream_.tokens; ++token) {
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      heads[Size(head)].Append(
          &stream_.keys[Size(token * shape_.key_row() + head * shape_.key_dim)],
          &stream_.values[Size(token * shape_.value_row() + head * shape_.value_dim)],
          stream_.mask[Size(token)] == 0);
    }
    if (token % 37 != 0 && token % 64 > 1) continue;
    const Answers answers = Attend(*engine_, At(*engine_, stream_, token + 1), rows.data(), 1);
    for (std::int64_t h = 0; h < shape_.query_heads; ++h) {
      std::vector<float> query(rows.begin() + h * shape_.key_dim,
                               rows.begin() + (h + 1) * shape_.key_dim);
      for (float& q : query) q *= shape_.scale;
      const std::vector<float> sums = heads[Size(h / shape_.group_size())].Query(query.data());
      ASSERT_EQ(answers.flags[Size(h)], sums.empty() ? 1 : 0) << token;
      if (sums.empty()) continue;
      ASSERT_EQ(answers.denominators[Size(h)], sums.back()) << token;
      for (std::int64_t j = 0; j < shape_.value_dim; ++j) {
        ASSERT_EQ(answers.numerators[Size(h * shape_.value_dim + j)], sums[Size(j)]) << token;
        ASSERT_EQ(answers.outputs[Size(h * shape_.value_dim + j)], sums[Size(j)] / sums.back());
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<Keys>& info) {
  constexpr const char* kNames[] = {"ordinary", "outlier", "spread", "same_steps"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(All, EfficientBits,
                         testing::Values(Keys::kOrdinary, Keys::kOutlier, Keys::kSpread,
                                         Keys::kSameSteps),
                         NameOf);

// Where each cut needs products of its own a chain has fewer rows, so that it stays a quantum.
TEST(EfficientQuanta, AStepOverFarKeysHasMoreChains) {
  const LayerShape shape = {1, 1, 512, 512, 1.0F};
  const auto engine = MakeLinear(shape, Config("efficient"));
  const std::vector<float> rows = NormalNumbers(64 * 512, 36);
  std::vector<float> outputs(Size(64 * 512));
  AnswerView view;
  view.outputs = outputs.data();
  std::vector<std::int64_t> chains;
  for (const float factor : {1.0F, 30.0F}) {
    for (const bool causal : {false, true}) {
      Stream stream = MakeStream(shape, 64, 37);
      ScaleKeys(factor, &stream);
      const Snapshot snapshot = At(*engine, stream, 64);
      QueryGroup group;
      group.sealed = snapshot.sealed.get();
      group.tail = snapshot.view();
      group.queries = rows.data();
      group.count = 64;
      group.causal = causal;
      group.first_cut = 1;
      const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
      plan->Reset(group, view);
      chains.push_back(plan->chains());
    }
  }
  EXPECT_EQ(chains, (std::vector<std::int64_t>{1, 1, 1, 4}));
}

// More columns than one panel of the products, in the recurrence and in the engine.
TEST(EfficientReference, ManyColumns) {
  if (!GemmHonoursChain()) GTEST_SKIP() << "this oneDNN does not keep the chain contract";
  const LayerShape shape = {1, 1, 300, 33, 1.0F};
  Stream stream = MakeStream(shape, 200, 34);
  ScaleKeys(15.0F, &stream);
  const auto engine = MakeLinear(shape, Config("efficient"));
  RefEfficientHead head(shape.key_dim, shape.value_dim);
  for (std::int64_t token = 0; token < 200; ++token) {
    head.Append(&stream.keys[Size(token * 300)], &stream.values[Size(token * 33)], false);
  }
  const std::vector<float> row = NormalNumbers(300, 35);
  const Answers answers = Attend(*engine, At(*engine, stream, 200), row.data(), 1);
  const std::vector<float> sums = head.Query(row.data());
  EXPECT_EQ(answers.denominators[0], sums.back());
  for (std::size_t j = 0; j < 33; ++j) EXPECT_EQ(answers.numerators[j], sums[j]) << j;
}

// The far key of a message that was refused left its steps in the open block.
TEST(EfficientDrafts, ADroppedDraftOfAFarKeyLeavesNoTrace) {
  const LayerShape shape = {1, 1, 16, 16, 1.0F};
  const auto engine = MakeLinear(shape, Config("efficient"));
  Stream stream = MakeStream(shape, 4, 51);
  Stream far = stream;
  far.keys[Size(2 * shape.key_dim + 3)] = 3000.0F;
  const auto batch = [](const Stream& tokens) {
    const auto rows = [](const std::vector<float>& numbers) {
      return ConstElements{DataType::kF32, numbers.data(), std::ssize(numbers)};
    };
    return TokenBatch{tokens.tokens, rows(tokens.keys), rows(tokens.values), nullptr};
  };
  Scratch scratch;
  LayerDraft first(*engine, EmptyLayer(*engine));
  ASSERT_TRUE(first.Append(batch(stream), 0, 2, nullptr, scratch).ok());
  const auto base = first.Finish();
  {
    LayerDraft dropped(*engine, base);
    ASSERT_TRUE(dropped.Append(batch(far), 2, 2, nullptr, scratch).ok());
  }
  LayerDraft second(*engine, base);
  ASSERT_TRUE(second.Append(batch(stream), 2, 2, nullptr, scratch).ok());
  const auto state = second.Finish();
  const std::vector<float> queries = NormalNumbers(shape.query_row(), 52);
  std::vector<float> outputs(Size(shape.output_row()));
  AnswerView view;
  view.outputs = outputs.data();
  const auto plan = engine->NewPlan();
  plan->Reset(AttendGroup(*state, queries.data(), 1), view);
  while (!plan->Run(0, scratch)) {
  }
  plan->Finish(scratch);
  EXPECT_TRUE(
      SameBits(outputs, Attend(*engine, At(*engine, stream, 4), queries.data(), 1).outputs));
}

}  // namespace
}  // namespace attnd::engine::linear_test
