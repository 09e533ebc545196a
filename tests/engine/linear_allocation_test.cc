// The steady state of an Attend and of sealing does not touch the allocator.
#include <cstdint>
#include <new>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/allocation_counter.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

TEST(LinearAllocation, CounterCounts) {
  const std::int64_t before = AllocationsOfThisThread();
  // A direct call: the compiler may leave out a new expression, but not this.
  ::operator delete(::operator new(100));
  EXPECT_EQ(AllocationsOfThisThread(), before + 1);
}

struct PlanCase {
  std::string map;
  float keys = 1.0F;  // factor on them
};
void PrintTo(const PlanCase& c, std::ostream* os) { *os << c.map << " " << c.keys; }

class LinearPlanAllocation : public testing::TestWithParam<PlanCase> {};

TEST_P(LinearPlanAllocation, WarmedUpPlanDoesNotAllocate) {
  const LayerShape shape = {2, 6, 48, 40, 1.0F};
  Stream stream = MakeStream(shape, 150, 61);
  ScaleKeys(GetParam().keys, &stream);
  const auto engine = MakeLinear(shape, Config(GetParam().map));
  const Snapshot snapshot = At(*engine, stream, 150);
  const std::vector<float> rows = NormalNumbers(500 * shape.query_row(), 62);
  std::vector<float> outputs(static_cast<std::size_t>(500 * shape.output_row()));
  AnswerView view;
  view.outputs = outputs.data();
  QueryGroup group;
  group.sealed = snapshot.sealed.get();
  group.sealed_tokens = snapshot.sealed_tokens;
  group.tail = snapshot.view();
  group.queries = rows.data();
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  const auto attend = [&](std::int64_t count) {
    group.count = count;
    plan->Reset(group, view);
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      while (!plan->Run(chain, scratch)) {
      }
    }
    plan->Finish(scratch);
  };
  attend(500);
  const std::int64_t before = AllocationsOfThisThread();
  attend(500);
  attend(1);
  attend(37);
  EXPECT_EQ(AllocationsOfThisThread(), before);
}

INSTANTIATE_TEST_SUITE_P(All, LinearPlanAllocation,
                         testing::Values(PlanCase{"elu_plus_one"}, PlanCase{"efficient"},
                                         PlanCase{"efficient", 50.0F}));

TEST(LinearAllocation, WarmedUpSealAndCheckDoNotAllocate) {
  const LayerShape shape = {2, 2, 20, 20, 1.0F};
  const Stream stream = MakeStream(shape, 128, 63);
  const auto engine = MakeLinear(shape, Config("elu_plus_one"));
  const Snapshot snapshot = At(*engine, stream, 100);
  const Block block = {stream.keys.data(), stream.values.data(), ~RowMask{0}, nullptr};
  Scratch scratch;
  ASSERT_TRUE(engine->Seal(*snapshot.sealed, 64, {&block, 1}, scratch).ok());
  const std::int64_t before = AllocationsOfThisThread();
  EXPECT_TRUE(engine->Seal(*snapshot.sealed, 128, {&block, 1}, scratch).ok());
  EXPECT_TRUE(engine->CheckTail(*snapshot.sealed, snapshot.view(), scratch).ok());
  EXPECT_EQ(AllocationsOfThisThread(), before);
}

}  // namespace
}  // namespace attnd::engine::linear_test
