// The steady state of an Attend does not touch the allocator, with an index and without.
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/allocation_counter.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::kde_test {
namespace {

class KdeAllocation : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(KdeAllocation, WarmedUpPlanDoesNotAllocate) {
  const LayerShape shape = {1, 3, 20, 24, 0.2F};
  const auto engine = MakeKde(shape);
  const Tokens tokens = exact_test::RandomTokens(shape, GetParam(), 64);
  const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
  const std::vector<float> queries = RandomValues(300 * shape.query_row(), 65);
  std::vector<float> outputs(Size(300 * shape.output_row()));
  std::vector<std::int64_t> positions(Size(300));
  std::vector<float> bounds(Size(600 * shape.query_heads));
  AnswerView view;
  view.outputs = outputs.data();
  view.estimates.log_normalizer_bounds = bounds.data();
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  const auto attend = [&](std::int64_t count, const exact_test::Asked& asked) {
    QueryGroup group = exact_test::Group(snapshot, queries.data(), count, asked);
    group.positions = asked.causal ? nullptr : positions.data();
    plan->Reset(group, view);
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      while (!plan->Run(chain, scratch)) {
      }
    }
    plan->Finish(scratch);
  };
  attend(300, {});
  attend(20, {.causal = true, .first_cut = 1});
  const std::int64_t before = AllocationsOfThisThread();
  attend(300, {});
  attend(1, {});
  attend(70, {});
  attend(20, {.causal = true, .first_cut = 1});
  EXPECT_EQ(AllocationsOfThisThread(), before);
}

INSTANTIATE_TEST_SUITE_P(Contexts, KdeAllocation, ::testing::Values(50, 3000, 12500));

}  // namespace
}  // namespace attnd::engine::kde_test
