// The bits of Efficient Attention: those of the recurrence, whatever keys come later or came with a
// message that was refused. linear_family_bits_test.cc has what its answers may not depend on.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/efficient/ref_efficient.h"
#include "engine/gemm.h"
#include "engine/layer_stream.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/linear_family_fixture.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

class EfficientBits : public FamilyFixture {};

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

INSTANTIATE_TEST_SUITE_P(All, EfficientBits, testing::ValuesIn(EfficientCases()), NameOf);

// Where each cut needs products of its own a chain has fewer rows, so that it stays a quantum.
TEST(EfficientQuanta, AStepOverFarKeysHasMoreChains) {
  const LayerShape shape = {1, 1, 512, 512, 1.0F};
  const auto engine = MakeLinear(shape, Config("efficient"));
  const std::vector<float> rows = NormalNumbers(std::int64_t{64} * 512, 36);
  std::vector<float> outputs(Size(std::int64_t{64} * 512));
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
