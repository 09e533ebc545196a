// A warmed-up certified plan does not touch the allocator.
#include <cstdint>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/allocation_counter.h"
#include "tests/engine/kde/index_harness.h"

namespace attnd::engine::kde_test {
namespace {

TEST(KdeCertifiedModeAllocation, WarmedUpPlanDoesNotAllocate) {
  const LayerShape shape = {2, 6, 20, 24, 0.3F};
  const auto engine = MakeKde(shape, KdeConfig::Mode::kCertified);
  const Tokens tokens = ClusteredTokens(shape, 3000, 60, 61);
  const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
  const std::vector<float> queries = KeysAsQueries(tokens, 100);
  const exact_test::Asked asked = {.top_k = 4};
  exact_test::Answers answers = exact_test::Unwritten(shape, 30, asked);
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  const auto attend = [&](std::int64_t count, bool causal) {
    exact_test::Asked group = asked;
    group.causal = causal;
    group.first_cut = 1;
    plan->Reset(exact_test::Group(snapshot, queries.data(), count, group),
                exact_test::View(answers, asked));
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      while (!plan->Run(chain, scratch)) {
      }
    }
    plan->Finish(scratch);
  };
  attend(30, false);
  const std::int64_t before = AllocationsOfThisThread();
  attend(30, false);
  attend(1, false);
  attend(20, true);
  EXPECT_EQ(AllocationsOfThisThread(), before);
}

}  // namespace
}  // namespace attnd::engine::kde_test
