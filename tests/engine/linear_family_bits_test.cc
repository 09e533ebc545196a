// Same tokens, same bits: what an answer of the linear engine, and of Efficient Attention, may not
// depend on.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/linear_family_fixture.h"

namespace attnd::engine::linear_test {
namespace {

class FamilyBits : public FamilyFixture {};

// fla#494, vllm#55524: streamed and one-shot contexts that differ in bits.
TEST_P(FamilyBits, GroupingOfSealedBlocksDoesNotMatter) {
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

TEST_P(FamilyBits, RowsAfterThePositionAreNeverRead) {
  const std::vector<float> rows = NormalNumbers(3 * shape_.query_row(), 23);
  for (const std::int64_t position : {1, 2, 16, 17, 64, 65, 66, 100, 590}) {
    Cutting clean;
    clean.poison_later = false;
    EXPECT_TRUE(Attend(*engine_, At(*engine_, stream_, position), rows.data(), 3) ==
                Attend(*engine_, At(*engine_, stream_, position, clean), rows.data(), 3))
        << position;
  }
}

TEST_P(FamilyBits, NumberOfQueriesDoesNotMatter) {
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
      ASSERT_TRUE(Row(some, query) == Row(all, first + query))
          << count << " queries, query " << query;
    }
  }
}

TEST_P(FamilyBits, StepsAgreeWithAttendsAtEveryPosition) {
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

TEST_P(FamilyBits, StepOfOneTokenAtTheStartOfABlockAgreesWithAttend) {
  const std::vector<float> rows = NormalNumbers(shape_.query_row(), 26);
  for (const std::int64_t position : {1, 65}) {
    const Snapshot snapshot = At(*engine_, stream_, position);
    EXPECT_TRUE(AttendCausally(*engine_, snapshot, rows.data(), 1, 1) ==
                Attend(*engine_, snapshot, rows.data(), 1));
  }
}

TEST_P(FamilyBits, ChainsMayRunOnDifferentThreads) {
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
TEST_P(FamilyBits, WriterOfLaterRowsAndReadersDoNotMeet) {
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

TEST_P(FamilyBits, CloneLeavesTheOriginalAsItWas) {
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

INSTANTIATE_TEST_SUITE_P(All, FamilyBits, testing::ValuesIn(FamilyCases()), NameOf);

}  // namespace
}  // namespace attnd::engine::linear_test
