// Upkeep of an index comes in pieces before the seals that need it, so that no seal holds a worker
// for long.
#include <cstdint>
#include <ctime>
#include <memory>
#include <vector>

#include "engine/kde/index/index_state.h"
#include "engine/kde/index/upkeep_schedule.h"
#include "engine/layer_stream.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"

namespace attnd::engine::kde_test {
namespace {

constexpr LayerShape kShape = {4, 4, 16, 16, 0.25F};
constexpr std::int64_t kBegin = kLeastMainTokens;  // where the build of the first span begins
constexpr std::int64_t kTokens = 4096 + 128;       // the span is visible before

double ThreadSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class KdeSealPreparation : public ::testing::Test {
 protected:
  KdeSealPreparation()
      : engine_(MakeKde(kShape)), tokens_(ClusteredTokens(kShape, kTokens, 30, 81)) {}

  TokenBatch Batch() const {
    return {
        kTokens,
        {DataType::kF32, tokens_.keys.data(), static_cast<std::int64_t>(tokens_.keys.size())},
        {DataType::kF32, tokens_.values.data(), static_cast<std::int64_t>(tokens_.values.size())},
        nullptr};
  }

  struct Run {
    std::shared_ptr<const LayerState> state;
    double seconds = 0.0;     // of appending, without preparation
    std::int64_t pieces = 0;  // of preparation
  };

  // All tokens from kBegin on, a block at a time.
  Run Append(bool prepare) {
    LayerDraft before(*engine_, EmptyLayer(*engine_));
    EXPECT_TRUE(before.Append(Batch(), 0, kBegin, nullptr, scratch_).ok());
    Run run{.state = before.Finish()};
    LayerDraft draft(*engine_, run.state);
    for (std::int64_t first = kBegin; first < kTokens; first += kBlockTokens) {
      while (prepare && !draft.PrepareSeal(kBlockTokens, scratch_)) ++run.pieces;
      const double start = ThreadSeconds();
      EXPECT_TRUE(draft.Append(Batch(), first, kBlockTokens, nullptr, scratch_).ok());
      run.seconds += ThreadSeconds() - start;
    }
    run.state = draft.Finish();
    return run;
  }

  std::vector<float> Attend(const LayerState& state) {
    const std::vector<float> queries = KeysAsQueries(tokens_, 97);
    const std::int64_t count = std::ssize(queries) / kShape.query_row();
    std::vector<float> outputs(Size(count * kShape.output_row()));
    const std::unique_ptr<AttendPlan> plan = engine_->NewPlan();
    plan->Reset(AttendGroup(state, queries.data(), count), {.outputs = outputs.data()});
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      while (!plan->Run(chain, scratch_)) {
      }
    }
    return outputs;
  }

  const std::unique_ptr<const Engine> engine_;
  const Tokens tokens_;
  Scratch scratch_;
};

// Two seals of a layer with eight kv-heads once held a worker for 125 ms.
TEST_F(KdeSealPreparation, LeavesLittleToSealsAndComesInManyPieces) {
  const Run plain = Append(/*prepare=*/false);
  const Run prepared = Append(/*prepare=*/true);
  EXPECT_EQ(plain.pieces, 0);
  // A leaf at a time, in each of several stages.
  EXPECT_GT(prepared.pieces, kShape.kv_heads * 4 * (kBegin / kBlockTokens));
  EXPECT_LT(prepared.seconds, plain.seconds / 4);
  ASSERT_FALSE(static_cast<const IndexState&>(*plain.state->sealed).spans().empty());
  EXPECT_EQ(Attend(*prepared.state), Attend(*plain.state));
}

TEST_F(KdeSealPreparation, ChangesNothingThatAnAnswerShowsAndIsNotLostWithADraft) {
  LayerDraft before(*engine_, EmptyLayer(*engine_));
  ASSERT_TRUE(before.Append(Batch(), 0, kBegin + 1, nullptr, scratch_).ok());
  const std::shared_ptr<const LayerState> state = before.Finish();
  const std::vector<float> answers = Attend(*state);
  LayerDraft dropped(*engine_, state);
  std::int64_t pieces = 0;
  while (!dropped.PrepareSeal(kBlockTokens, scratch_)) ++pieces;
  EXPECT_GT(pieces, 0);
  EXPECT_EQ(Attend(*state), answers);
  const LayerDraft next(*engine_, state);
  EXPECT_TRUE(next.PrepareSeal(kBlockTokens, scratch_));
  EXPECT_TRUE(next.PrepareSeal(1, scratch_));
}

TEST_F(KdeSealPreparation, TokensThatSealNothingNeedNone) {
  LayerDraft before(*engine_, EmptyLayer(*engine_));
  ASSERT_TRUE(before.Append(Batch(), 0, kBegin + 1, nullptr, scratch_).ok());
  EXPECT_TRUE(before.PrepareSeal(kBlockTokens - 1, scratch_));
  EXPECT_FALSE(before.PrepareSeal(kBlockTokens, scratch_));
}

}  // namespace
}  // namespace attnd::engine::kde_test
