// Same tokens, same bits: what an answer of the linear engine may not depend on.
#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/gemm.h"
#include "engine/linear/linear_engine.h"
#include "engine/linear/ref_linear.h"
#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

constexpr std::int64_t kPosition = 64 * 9 + 23;

LayerShape GroupedShape() { return {2, 8, 24, 20, 0.3F}; }

// One row of answers, by query.
Answers Row(const Answers& answers, const LayerShape& shape, std::int64_t query) {
  const auto cut = [query](const auto& all, std::int64_t row) {
    const auto first = all.begin() + query * row;
    return std::decay_t<decltype(all)>(first, first + row);
  };
  return {cut(answers.outputs, shape.output_row()), cut(answers.numerators, shape.output_row()),
          cut(answers.denominators, shape.query_heads), cut(answers.exponents, shape.query_heads),
          cut(answers.flags, shape.query_heads)};
}

class LinearBits : public testing::Test {
 protected:
  LinearBits()
      : shape_(GroupedShape()),
        stream_(MakeStream(shape_, kPosition + 64, 21)),
        engine_(MakeLinear(shape_, Config("elu_plus_one"))) {
    for (const std::int64_t token : {5, 64, 70, 200, 580, 590}) stream_.Mask(token);
  }

  LayerShape shape_;
  Stream stream_;
  std::unique_ptr<const Engine> engine_;
};

// fla#494, vllm#55524: streamed and one-shot contexts that differ in bits.
TEST_F(LinearBits, GroupingOfSealedBlocksDoesNotMatter) {
  const std::vector<float> rows = NormalNumbers(7 * shape_.query_row(), 22);
  const Answers expected = Attend(*engine_, At(*engine_, stream_, kPosition), rows.data(), 7);
  for (const bool features_from_tail : {false, true}) {
    for (const std::vector<std::int64_t>& spans :
         {std::vector<std::int64_t>{1}, {2}, {1, 3}, {4, 5}, {8, 1}}) {
      const Snapshot snapshot = At(*engine_, stream_, kPosition, {spans, features_from_tail, true});
      EXPECT_TRUE(Attend(*engine_, snapshot, rows.data(), 7) == expected) << spans[0];
    }
  }
}

TEST_F(LinearBits, RowsAfterThePositionAreNeverRead) {
  const std::vector<float> rows = NormalNumbers(3 * shape_.query_row(), 23);
  for (const std::int64_t position : {1, 16, 17, 64, 65, 100}) {
    Cutting clean;
    clean.poison_later = false;
    EXPECT_TRUE(Attend(*engine_, At(*engine_, stream_, position), rows.data(), 3) ==
                Attend(*engine_, At(*engine_, stream_, position, clean), rows.data(), 3))
        << position;
  }
}

TEST_F(LinearBits, NumberOfQueriesDoesNotMatter) {
  const std::int64_t most = 500;
  const std::vector<float> rows = NormalNumbers(most * shape_.query_row(), 24);
  const Snapshot snapshot = At(*engine_, stream_, kPosition);
  const Answers all = Attend(*engine_, snapshot, rows.data(), most);
  for (const std::int64_t count :
       {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65, 100, 192, 193, 300}) {
    // The last rows of the long call, so that they also stand elsewhere in their tile.
    const std::int64_t first = most - count;
    const Answers some =
        Attend(*engine_, snapshot, rows.data() + first * shape_.query_row(), count);
    for (std::int64_t query = 0; query < count; query += std::max<std::int64_t>(1, count / 9)) {
      ASSERT_TRUE(Row(some, shape_, query) == Row(all, shape_, first + query))
          << count << " queries, query " << query;
    }
  }
}

TEST_F(LinearBits, StepsAgreeWithAttendsAtEveryPosition) {
  // A Step of 41 tokens that end at row 64 of the block.
  const std::int64_t count = 41;
  const std::int64_t first = 64 * 9 + 24;
  const std::vector<float> rows = NormalNumbers(count * shape_.query_row(), 25);
  const Snapshot last = At(*engine_, stream_, first + count - 1);
  ASSERT_EQ(last.rows, 64);
  const Answers steps = AttendCausally(*engine_, last, rows.data(), count, 24);
  for (std::int64_t query = 0; query < count; ++query) {
    const Answers attend = Attend(*engine_, At(*engine_, stream_, first + query),
                                  rows.data() + query * shape_.query_row(), 1);
    ASSERT_TRUE(Row(steps, shape_, query) == attend) << query;
  }
}

TEST_F(LinearBits, StepOfOneTokenAtTheStartOfABlockAgreesWithAttend) {
  const std::vector<float> rows = NormalNumbers(shape_.query_row(), 26);
  for (const std::int64_t position : {1, 65}) {
    const Snapshot snapshot = At(*engine_, stream_, position);
    EXPECT_TRUE(AttendCausally(*engine_, snapshot, rows.data(), 1, 1) ==
                Attend(*engine_, snapshot, rows.data(), 1));
  }
}

// A query's product with a later key may be infinite; times a weight of 0 that is a NaN.
TEST_F(LinearBits, LaterKeysWhoseScoreOverflowsDoNotReachEarlierQueries) {
  Stream stream = MakeStream(shape_, 10, 27);
  std::fill_n(stream.keys.begin() + 9 * shape_.key_row(), shape_.key_row(), 3e38F);
  const std::vector<float> rows = NormalNumbers(10 * shape_.query_row(), 28, 10.0F);
  const Answers steps = AttendCausally(*engine_, At(*engine_, stream, 10), rows.data(), 10, 1);
  for (std::int64_t query = 0; query < 9; ++query) {
    EXPECT_TRUE(Row(steps, shape_, query) == Attend(*engine_, At(*engine_, stream, query + 1),
                                                    rows.data() + query * shape_.query_row(), 1))
        << query;
  }
  EXPECT_EQ(steps.flags.back(), static_cast<std::uint8_t>(RowFlag::kOverflow));
}

TEST_F(LinearBits, ChainsMayRunOnDifferentThreads) {
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
  Scratch scratch;
  plan->Finish(scratch);
  EXPECT_TRUE(answers == expected);
}

// The thread sanitizer sees a read of a row that the layer's writer may be writing.
TEST_F(LinearBits, WriterOfLaterRowsAndReadersDoNotMeet) {
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

TEST_F(LinearBits, CloneLeavesTheOriginalAsItWas) {
  const std::vector<float> rows = NormalNumbers(shape_.query_row(), 30);
  const Snapshot snapshot = At(*engine_, stream_, 65);
  const Answers before = Attend(*engine_, snapshot, rows.data(), 1);
  const std::shared_ptr<SealedState> copy = engine_->Clone(*snapshot.sealed);
  const Block block = {stream_.keys.data(), stream_.values.data(), ~RowMask{0}};
  Scratch scratch;
  ASSERT_TRUE(engine_->Seal(*copy, 64, {&block, 1}, scratch).ok());
  EXPECT_TRUE(Attend(*engine_, snapshot, rows.data(), 1) == before);
}

struct RefCase {
  const char* map;
  LayerShape shape;
};

// The recurrence, token by token in scalar code, has the bits of the engine.
TEST(LinearReference, EngineHasTheBitsOfTheRecurrence) {
  if (!GemmHonoursChain()) GTEST_SKIP() << "this oneDNN does not keep the chain contract";
  for (const RefCase& c :
       {RefCase{"elu_plus_one", {2, 4, 24, 20, 0.3F}}, RefCase{"identity", {1, 1, 64, 64, 1.0F}},
        RefCase{"squared_relu", {1, 2, 300, 33, 0.7F}}, RefCase{"relu", {3, 3, 1, 1, 1.0F}},
        RefCase{"favor_positive", {2, 4, 24, 20, 0.3F}},
        RefCase{"favor_hyperbolic", {1, 1, 16, 16, 1.0F}},
        RefCase{"random_fourier", {1, 2, 8, 5, 0.5F}}, RefCase{"cosformer", {2, 2, 20, 16, 1.0F}},
        RefCase{"dpfp", {1, 1, 10, 4, 1.0F}}, RefCase{"taylor", {1, 2, 24, 17, 0.2F}}}) {
    SCOPED_TRACE(c.map);
    const LayerShape& shape = c.shape;
    Stream stream = MakeStream(shape, 64 * 4 + 2, 31);
    for (const std::int64_t token : {0, 3, 66, 130, 200}) stream.Mask(token);
    LinearConfig config = Config(c.map);
    config.normalized = false;
    if (config.feature_map.name == "cosformer") config.feature_map.horizon = 50;
    if (config.feature_map.name == "dpfp") config.feature_map.nu = 2;
    const auto engine = MakeLinear(shape, config);
    const FeatureMap& map = *engine->feature_map();
    const std::vector<float> rows = NormalNumbers(shape.query_row(), 32);
    std::vector<RefLinearHead> heads(static_cast<std::size_t>(shape.kv_heads),
                                     RefLinearHead(map, shape.key_dim, shape.value_dim));
    for (std::int64_t token = 0; token < stream.tokens; ++token) {
      const auto t = static_cast<std::size_t>(token);
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        heads[static_cast<std::size_t>(head)].Append(
            &stream.keys[t * static_cast<std::size_t>(shape.key_row())] + head * shape.key_dim,
            &stream.values[t * static_cast<std::size_t>(shape.value_row())] +
                head * shape.value_dim,
            stream.mask[t] == 0);
      }
      if (token % 37 != 0 && token % 64 > 1) continue;
      const Answers answers =
          Attend(*engine, At(*engine, stream, token + 1), rows.data(), 1, &token);
      for (std::int64_t h = 0; h < shape.query_heads; ++h) {
        std::vector<float> query(rows.begin() + h * shape.key_dim,
                                 rows.begin() + (h + 1) * shape.key_dim);
        for (float& q : query) q *= shape.scale;
        const RefLinearHead::Answer expected =
            heads[static_cast<std::size_t>(h / shape.group_size())].Query(query.data(), h, token);
        const auto at = static_cast<std::size_t>(h);
        EXPECT_EQ(answers.flags[at], expected.empty ? 1 : 0);
        ASSERT_EQ(answers.denominators[at], expected.denominator) << token;
        ASSERT_EQ(answers.exponents[at], expected.exponent) << token;
        for (std::int64_t j = 0; j < shape.value_dim; ++j) {
          ASSERT_EQ(answers.numerators[static_cast<std::size_t>(h * shape.value_dim + j)],
                    expected.numerator[static_cast<std::size_t>(j)])
              << token;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnd::engine::linear_test
