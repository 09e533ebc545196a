// The steady state of an Attend does not touch the allocator.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/allocation_counter.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::exact_test {
namespace {

class ExactAllocation : public ::testing::TestWithParam<DataType> {};

TEST_P(ExactAllocation, WarmedUpPlanDoesNotAllocate) {
  const LayerShape shape = {1, 3, 20, 24, 0.2F};
  const auto engine = MakeExact(shape, GetParam());
  const Tokens tokens = RandomTokens(shape, 16384 + 150, 61);
  const Snapshot snapshot = At(*engine, tokens, tokens.count);
  const std::vector<float> queries = RandomValues(300 * shape.query_row(), 62);
  std::vector<float> outputs(static_cast<std::size_t>(300 * shape.output_row()));
  std::vector<std::int64_t> positions(static_cast<std::size_t>(300 * shape.query_heads * 4));
  std::vector<float> weights(positions.size());
  AnswerView view;
  view.outputs = outputs.data();
  view.top_k = 4;
  view.top_positions = positions.data();
  view.top_weights = weights.data();
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  const auto attend = [&](std::int64_t count, const Asked& asked) {
    plan->Reset(Group(snapshot, queries.data(), count, asked), view);
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      while (!plan->Run(chain, scratch)) {
      }
    }
    plan->Finish(scratch);
  };
  attend(300, {});
  attend(22, {.causal = true, .first_cut = 1});
  const std::int64_t before = AllocationsOfThisThread();
  attend(300, {});
  attend(1, {});
  attend(70, {});
  attend(22, {.causal = true, .first_cut = 1});
  EXPECT_EQ(AllocationsOfThisThread(), before);
}

// A few queries over a long context keep the sums of every split, many times their outputs; a
// server that counts the outputs alone can be made to run out of memory.
TEST_P(ExactAllocation, PlanBytesCountTheSumsOfAllSplits) {
  const LayerShape shape = {1, 1, 16, 64, 1.0F};
  const auto engine = MakeExact(shape, GetParam());
  constexpr std::int64_t kFloat = sizeof(float);
  // 64 splits of 16,384 tokens, each with 192 rows of 64 values, a maximum and a sum.
  EXPECT_GE(engine->PlanBytes(1 << 20, 192, 0), 64 * 192 * 66 * kFloat);
  EXPECT_LE(engine->PlanBytes(1 << 20, 192, 0), 64 * 192 * 68 * kFloat);
  EXPECT_LT(engine->PlanBytes(1 << 20, 1, 0), 64 * 16 * 68 * kFloat);
  // Beyond 8 MiB the splits of a tile are one chain's.
  EXPECT_LT(engine->PlanBytes(std::int64_t{1} << 40, 192, 0), std::int64_t{1} << 20);
  EXPECT_GT(engine->PlanBytes(1 << 20, 192, 8), engine->PlanBytes(1 << 20, 192, 0));
}

INSTANTIATE_TEST_SUITE_P(Storage, ExactAllocation,
                         ::testing::Values(DataType::kF32, DataType::kBf16));

}  // namespace
}  // namespace attnd::engine::exact_test
