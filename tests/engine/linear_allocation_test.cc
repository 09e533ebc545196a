// The steady state of an Attend and of sealing does not touch the allocator.
#include <cstdint>
#include <new>
#include <ostream>
#include <string>
#include <vector>

#include "engine/linear/map_weights.h"
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
  float keys = 1.0F;                                // factor on them
  MapActivation activation = MapActivation::kRelu;  // of learned
};
void PrintTo(const PlanCase& c, std::ostream* os) {
  *os << c.map << " " << c.keys << " " << static_cast<int>(c.activation);
}

// Weights and biases of each head's own; the features are no multiple of 16.
LinearConfig Learned(const LayerShape& shape, MapActivation activation) {
  const MapWeightsShape weights = {
      activation, shape.kv_heads, shape.query_heads, shape.key_dim, 20, true, true};
  MapWeightsBuilder builder(weights);
  const std::vector<float> numbers = NormalNumbers(weights.numbers(), 64, 0.1F);
  EXPECT_TRUE(builder.Add(numbers.data(), weights.numbers()).ok());
  LinearConfig config = Config("learned");
  config.feature_map.weights = builder.Finish();
  return config;
}

LinearConfig ConfigOf(const LayerShape& shape, const PlanCase& c) {
  return c.map == "learned" ? Learned(shape, c.activation) : Config(c.map);
}

class LinearPlanAllocation : public testing::TestWithParam<PlanCase> {};
class LinearSealAllocation : public testing::TestWithParam<PlanCase> {};

TEST_P(LinearPlanAllocation, WarmedUpPlanDoesNotAllocate) {
  const LayerShape shape = {2, 6, 48, 40, 1.0F};
  Stream stream = MakeStream(shape, 150, 61);
  ScaleKeys(GetParam().keys, &stream);
  const auto engine = MakeLinear(shape, ConfigOf(shape, GetParam()));
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

TEST_P(LinearSealAllocation, WarmedUpSealAndCheckDoNotAllocate) {
  const LayerShape shape = {2, 2, 20, 20, 1.0F};
  const Stream stream = MakeStream(shape, 128, 63);
  const auto engine = MakeLinear(shape, ConfigOf(shape, GetParam()));
  const Snapshot snapshot = At(*engine, stream, 100);
  const Block block = {stream.keys.data(), stream.values.data(), ~RowMask{0}, nullptr};
  Scratch scratch;
  ASSERT_TRUE(engine->Seal(*snapshot.sealed, 64, {&block, 1}, scratch).ok());
  const std::int64_t before = AllocationsOfThisThread();
  EXPECT_TRUE(engine->Seal(*snapshot.sealed, 128, {&block, 1}, scratch).ok());
  EXPECT_TRUE(engine->CheckTail(*snapshot.sealed, snapshot.view(), scratch).ok());
  EXPECT_EQ(AllocationsOfThisThread(), before);
}

INSTANTIATE_TEST_SUITE_P(Maps, LinearPlanAllocation,
                         testing::Values(PlanCase{"elu_plus_one"}, PlanCase{"efficient"},
                                         PlanCase{"efficient", 50.0F}));
INSTANTIATE_TEST_SUITE_P(Maps, LinearSealAllocation, testing::Values(PlanCase{"elu_plus_one"}));

const auto kLearnedCases = testing::Values(PlanCase{"learned", 1.0F, MapActivation::kRelu},
                                           PlanCase{"learned", 1.0F, MapActivation::kExp},
                                           PlanCase{"learned", 1.0F, MapActivation::kSoftmax},
                                           PlanCase{"learned", 1.0F, MapActivation::kHedgehog});
INSTANTIATE_TEST_SUITE_P(Learned, LinearPlanAllocation, kLearnedCases);
INSTANTIATE_TEST_SUITE_P(Learned, LinearSealAllocation, kLearnedCases);

}  // namespace
}  // namespace attnd::engine::linear_test
