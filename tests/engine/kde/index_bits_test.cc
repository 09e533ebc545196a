// Same tokens, same bits: what an index answer may not depend on.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "engine/kde/index/index_state.h"
#include "engine/kde/index/ref_index.h"
#include "engine/kde/index/upkeep_schedule.h"
#include "engine/layer_stream.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::kde_test {
namespace {

constexpr LayerShape kShape = {2, 6, 20, 24, 0.3F};
constexpr std::int64_t kTokens = 3 * 3968 + 700;  // a main span, one of the ladder, raw blocks

class KdeBits : public ::testing::Test {
 protected:
  // Without audits, so that stated errors have to be the same as well.
  KdeBits()
      : engine_(MakeKde(kShape, {.mode = KdeConfig::Mode::kIndex, .audits = {0.0, 0.0}})),
        tokens_(ClusteredTokens(kShape, kTokens, 60, 81)) {
    for (std::int64_t t = 3; t < tokens_.count; t += 11) tokens_.Mask(t);
    queries_ = KeysAsQueries(tokens_, 53, 1.5F);
    count_ = static_cast<std::int64_t>(queries_.size()) / kShape.query_row();
    for (std::int64_t i = 0; i < count_; ++i) positions_.push_back(53 * i);
  }

  const float* query(std::int64_t i) const { return queries_.data() + i * kShape.query_row(); }
  Asked WithPositions(std::int64_t first, std::int64_t count) const {
    Asked asked = {.top_k = 5};
    asked.positions = {positions_.begin() + first, positions_.begin() + first + count};
    return asked;
  }

  const std::unique_ptr<const Engine> engine_;
  Tokens tokens_;
  std::vector<float> queries_;
  std::int64_t count_ = 0;
  std::vector<std::int64_t> positions_;
};

TEST_F(KdeBits, AreThoseOfTheReference) {
  const Snapshot snapshot = exact_test::At(*engine_, tokens_, tokens_.count);
  const auto& state = static_cast<const IndexState&>(*snapshot.sealed);
  ASSERT_EQ(state.spans().size(), 3U);
  ASSERT_GT(state.raw_blocks().size(), 1U);
  const Asked asked = WithPositions(0, count_);
  const Answers answers = Ask(*engine_, snapshot, query(0), count_, asked);
  std::int64_t partly = 0;
  for (std::int64_t i = 0; i < count_; i += 9) {
    for (std::int64_t head = 0; head < kShape.query_heads; ++head) {
      const std::int64_t row = i * kShape.query_heads + head;
      std::vector<float> output(Size(kShape.value_dim));
      const float log_normalizer =
          RefIndexRow(kShape, state, {snapshot.tail.get(), snapshot.rows, snapshot.valid},
                      {.row = queries_.data() + row * kShape.key_dim,
                       .head = head,
                       .position = positions_[Size(i)],
                       .threshold = kDefaultThreshold},
                      {}, output.data());
      const auto first = answers.exact.outputs.begin() + row * kShape.value_dim;
      ASSERT_TRUE(SameBits(output, {first, first + kShape.value_dim})) << i << " " << head;
      ASSERT_EQ(log_normalizer, answers.exact.log_normalizers[Size(row)]) << i << " " << head;
      partly += answers.masses[Size(row)] < 1.0F && answers.masses[Size(row)] > 0.1F ? 1 : 0;
    }
  }
  EXPECT_GT(partly, 20);  // rows with both read and unread leaves
}

TEST_F(KdeBits, DoNotDependOnTheNumberOfQueries) {
  const Snapshot snapshot = exact_test::At(*engine_, tokens_, tokens_.count);
  const Answers all = Ask(*engine_, snapshot, query(0), count_, WithPositions(0, count_));
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 16, 21, 22, 43, 64, 65, 129, 200}) {
    for (std::int64_t first = 0; first < count_; first += std::max(n, count_ / 3)) {
      const std::int64_t count = std::min(n, count_ - first);
      EXPECT_TRUE(Ask(*engine_, snapshot, query(first), count, WithPositions(first, count)) ==
                  all.Slice(first, count, count_))
          << count << " queries from " << first;
    }
  }
}

TEST_F(KdeBits, DoNotDependOnTheSpansOfSealing) {
  const Asked asked = WithPositions(0, count_);
  for (const std::int64_t position : {std::int64_t{4096}, kTokens}) {
    const Answers at_once =
        Ask(*engine_, exact_test::At(*engine_, tokens_, position), query(0), count_, asked);
    for (const auto& spans : {std::vector<std::int64_t>{1}, {2, 1, 5}, {17, 3}}) {
      const Snapshot snapshot = exact_test::At(*engine_, tokens_, position, spans);
      EXPECT_TRUE(Ask(*engine_, snapshot, query(0), count_, asked) == at_once) << position;
    }
  }
}

TEST_F(KdeBits, DoNotDependOnTheCuttingOfAppends) {
  const TokenBatch batch = {
      kTokens,
      {DataType::kF32, tokens_.keys.data(), static_cast<std::int64_t>(tokens_.keys.size())},
      {DataType::kF32, tokens_.values.data(), static_cast<std::int64_t>(tokens_.values.size())},
      tokens_.mask.data()};
  const Asked asked = WithPositions(0, count_);
  const Answers expected =
      Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), query(0), count_, asked);
  Scratch scratch;
  for (const std::int64_t piece : {std::int64_t{5}, std::int64_t{1000}, kTokens}) {
    std::shared_ptr<const LayerState> state = EmptyLayer(*engine_);
    while (state->position() < kTokens) {
      LayerDraft draft(*engine_, state);
      const std::int64_t now = std::min(piece, kTokens - state->position());
      ASSERT_TRUE(draft.Append(batch, state->position(), now, nullptr, scratch).ok());
      ASSERT_TRUE(draft.CheckTail(scratch).ok());
      state = draft.Finish();
    }
    Answers answers = expected;
    std::fill(answers.exact.outputs.begin(), answers.exact.outputs.end(), -7.0F);
    const std::unique_ptr<AttendPlan> plan = engine_->NewPlan();
    plan->Reset(AttendGroup(*state, query(0), count_, asked.positions.data()),
                {.outputs = answers.exact.outputs.data()});
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      while (!plan->Run(chain, scratch)) {
      }
    }
    plan->Finish(scratch);
    EXPECT_TRUE(answers == expected) << piece;
  }
}

TEST_F(KdeBits, OfStepsAreThoseOfAttendsAtEachPosition) {
  const std::int64_t sealed = (kTokens - 1) / kBlockTokens * kBlockTokens;
  const std::int64_t steps = kTokens - sealed;
  const Answers together = Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), query(0),
                               steps, {.causal = true, .first_cut = 1, .top_k = 4});
  for (std::int64_t i = 0; i < steps; i += 7) {
    Asked asked = {.top_k = 4};
    const Snapshot snapshot = exact_test::At(*engine_, tokens_, sealed + 1 + i);
    const Answers expected = together.Slice(i, 1, steps);
    EXPECT_TRUE(Ask(*engine_, snapshot, query(i), 1, asked) == expected) << i;
    asked.positions = {sealed + i};
    EXPECT_TRUE(Ask(*engine_, snapshot, query(i), 1, asked) == expected) << i;
  }
}

// A draft that is dropped in the middle of a build, and another one from the same base with other
// tokens, leave nothing behind; a fork that went ahead has done work that others do not see.
TEST_F(KdeBits, DoNotDependOnDroppedDraftsAndForks) {
  const Asked asked = WithPositions(0, count_);
  const Answers expected =
      Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), query(0), count_, asked);
  const std::int64_t end = 7936;  // where the build of a main span begins
  const std::int64_t begun = end + kBlockTokens;
  ASSERT_FALSE(SpansEndingAt(end).empty());
  Snapshot snapshot = exact_test::At(*engine_, tokens_, begun + 1, {3});
  Tokens other = tokens_;
  for (std::int64_t t = begun; t < other.count; ++t) other.keys[Size(t * kShape.key_row())] += 1.0F;
  const auto dropped = engine_->Clone(*snapshot.sealed);
  exact_test::SealTokens(*engine_, other, begun, end + 5 * kBlockTokens, *dropped);
  const auto fork = engine_->Clone(*snapshot.sealed);
  exact_test::SealTokens(*engine_, tokens_, begun, end + 2 * kBlockTokens, *fork);
  const std::int64_t sealed = (kTokens - 1) / kBlockTokens * kBlockTokens;
  const auto kept = engine_->Clone(*snapshot.sealed);
  exact_test::SealTokens(*engine_, tokens_, begun, sealed, *kept);
  Snapshot last = exact_test::At(*engine_, tokens_, kTokens);
  last.sealed = kept;
  EXPECT_TRUE(Ask(*engine_, last, query(0), count_, asked) == expected);
  // And the one that was at the job first.
  exact_test::SealTokens(*engine_, tokens_, end + 2 * kBlockTokens, sealed, *fork);
  last.sealed = fork;
  EXPECT_TRUE(Ask(*engine_, last, query(0), count_, asked) == expected);
}

TEST_F(KdeBits, DoNotDependOnThreadsThatShareABuild) {
  const Asked asked = WithPositions(0, count_);
  const std::int64_t sealed = (kTokens - 1) / kBlockTokens * kBlockTokens;
  Snapshot last = exact_test::At(*engine_, tokens_, kTokens);
  const Answers expected = Ask(*engine_, last, query(0), count_, asked);
  const std::int64_t begun = 7936 + kBlockTokens;
  const Snapshot base = exact_test::At(*engine_, tokens_, begun + 1);
  std::vector<std::shared_ptr<SealedState>> forks;
  for (int i = 0; i < 3; ++i) forks.push_back(engine_->Clone(*base.sealed));
  std::vector<std::thread> threads;
  for (const auto& fork : forks) {
    threads.emplace_back(
        [&, fork] { exact_test::SealTokens(*engine_, tokens_, begun, sealed, *fork); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& fork : forks) {
    last.sealed = fork;
    EXPECT_TRUE(Ask(*engine_, last, query(0), count_, asked) == expected);
  }
}

// Masked tokens are as if they had never been, but for their places.
TEST_F(KdeBits, DoNotDependOnWhatMaskedTokensHeld) {
  const Asked asked = WithPositions(0, count_);
  Tokens other = tokens_;
  for (std::int64_t t = 3; t < other.count; t += 11) {
    std::fill_n(other.keys.begin() + t * kShape.key_row(), kShape.key_row(), 5.0F);
    std::fill_n(other.values.begin() + t * kShape.value_row(), kShape.value_row(), -3.0F);
  }
  EXPECT_TRUE(
      Ask(*engine_, exact_test::At(*engine_, other, kTokens), query(0), count_, asked).exact ==
      Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), query(0), count_, asked).exact);
}

}  // namespace
}  // namespace attnd::engine::kde_test
