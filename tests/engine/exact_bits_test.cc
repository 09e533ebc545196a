// Same tokens, same bits: what an answer may not depend on.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <ostream>
#include <thread>
#include <vector>

#include "engine/exact/exact_plan.h"
#include "engine/gemm.h"
#include "gtest/gtest.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::exact_test {
namespace {

struct Case {
  LayerShape shape;
  DataType storage;
  std::int64_t tokens;
  std::int64_t max_queries;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << "H=" << c.shape.kv_heads << " Hq=" << c.shape.query_heads << " d_k=" << c.shape.key_dim
      << " d_v=" << c.shape.value_dim << " bf16=" << (c.storage == DataType::kBf16);
}

class ExactBits : public ::testing::TestWithParam<Case> {
 protected:
  ExactBits()
      : engine_(MakeExact(GetParam().shape, GetParam().storage)),
        tokens_(RandomTokens(GetParam().shape, GetParam().tokens, 21)),
        queries_(RandomValues(GetParam().max_queries * GetParam().shape.query_row(), 22)) {
    for (std::int64_t t = 3; t < tokens_.count; t += 11) tokens_.Mask(t);
    tokens_.Round(*engine_);
  }

  const float* query(std::int64_t i) const {
    return queries_.data() + i * engine_->shape().query_row();
  }

  const std::unique_ptr<const Engine> engine_;
  Tokens tokens_;
  const std::vector<float> queries_;
};

TEST_P(ExactBits, DoNotDependOnTheNumberOfQueries) {
  const Asked asked = {.top_k = 4};
  const Snapshot snapshot = At(*engine_, tokens_, tokens_.count);
  const std::int64_t most = GetParam().max_queries;
  const Answers all = Attend(*engine_, snapshot, query(0), most, asked);
  for (const std::int64_t n : {1,  2,  3,  4,  5,   6,   7,   8,   9,   13,  16,  17,
                               33, 50, 64, 65, 100, 129, 150, 191, 192, 193, 385, 500}) {
    for (std::int64_t first = 0; n <= most && first < most; first += std::max(n, most / 3)) {
      const std::int64_t count = std::min(n, most - first);
      EXPECT_TRUE(Attend(*engine_, snapshot, query(first), count, asked) ==
                  all.Slice(first, count, most))
          << count << " queries from " << first;
    }
  }
}

TEST_P(ExactBits, OfStepsAreThoseOfAttendsAtEachPosition) {
  const std::int64_t sealed = (tokens_.count - 1) / kBlockTokens * kBlockTokens;
  const std::int64_t rows = tokens_.count - sealed;
  const std::int64_t steps = std::min(rows, GetParam().max_queries);
  for (const std::int64_t first_cut : {std::int64_t{1}, rows - steps + 1}) {
    const Answers together = Attend(*engine_, At(*engine_, tokens_, tokens_.count), query(0), steps,
                                    {.causal = true, .first_cut = first_cut, .top_k = 4});
    for (std::int64_t i = 0; i < steps; ++i) {
      EXPECT_TRUE(Attend(*engine_, At(*engine_, tokens_, sealed + first_cut + i), query(i), 1,
                         {.top_k = 4}) == together.Slice(i, 1, steps))
          << "step " << i << " from " << first_cut;
    }
  }
}

TEST_P(ExactBits, DoNotDependOnTheSpansOfSealing) {
  const Answers at_once = Attend(*engine_, At(*engine_, tokens_, tokens_.count), query(0), 5);
  for (const auto& spans : {std::vector<std::int64_t>{1}, {2, 1, 5}, {17, 3}}) {
    EXPECT_TRUE(Attend(*engine_, At(*engine_, tokens_, tokens_.count, spans), query(0), 5) ==
                at_once);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExactBits,
                         ::testing::Values(Case{{1, 1, 64, 64, 0.125F}, DataType::kF32, 700, 500},
                                           Case{{1, 1, 64, 64, 0.125F}, DataType::kBf16, 700, 500},
                                           Case{{2, 6, 15, 80, 0.25F}, DataType::kF32, 2000, 140},
                                           Case{{2, 6, 15, 80, 0.25F}, DataType::kBf16, 300, 140},
                                           Case{{1, 1, 100, 1, 0.1F}, DataType::kF32, 127, 200},
                                           Case{{1, 2, 1, 33, 1.0F}, DataType::kBf16, 128, 200},
                                           Case{{1, 1, 300, 300, 0.06F}, DataType::kF32, 191, 70}));

// Many tiles or long lists of top keys: chains go through all splits. Few tiles: a chain per split,
// merged at the end.
TEST(ExactBitsTest, DoNotDependOnWhoMergesTheSplits) {
  const LayerShape shape = {1, 1, 2, 2, 1.0F};
  const auto engine = MakeExact(shape);
  const std::int64_t position = 3 * 16384 + 77;
  const std::int64_t tiles = 65;
  const std::int64_t count = tiles * kGemmMaxRows;
  const Tokens tokens = RandomTokens(shape, position, 23);
  const std::vector<float> queries = RandomValues(count * shape.query_row(), 24, 3.0F);
  const Snapshot snapshot = At(*engine, tokens, position);
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  std::vector<float> outputs(static_cast<std::size_t>(count * 2));
  plan->Reset(Group(snapshot, queries.data(), count), {.outputs = outputs.data()});
  ASSERT_EQ(plan->chains(), tiles);
  plan->Reset(Group(snapshot, queries.data(), 200), {.outputs = outputs.data()});
  ASSERT_EQ(plan->chains(), 2 * 4);

  const Asked asked = {.top_k = 5};
  const Answers all = Attend(*engine, snapshot, queries.data(), count, asked);
  for (const std::int64_t n : {1, 3, 4, 200}) {
    EXPECT_TRUE(Attend(*engine, snapshot, queries.data(), n, asked) == all.Slice(0, n, count));
  }

  const Asked many_keys = {.top_k = 64};
  Answers of_many_keys = Unwritten(shape, 200, many_keys);
  plan->Reset(Group(snapshot, queries.data(), 200), View(of_many_keys, many_keys));
  ASSERT_EQ(plan->chains(), 2);
  plan->Reset(Group(snapshot, queries.data(), 3), View(of_many_keys, many_keys));
  ASSERT_EQ(plan->chains(), 4);
  of_many_keys = Attend(*engine, snapshot, queries.data(), 200, many_keys);
  for (const std::int64_t n : {1, 3}) {
    EXPECT_TRUE(Attend(*engine, snapshot, queries.data(), n, many_keys) ==
                of_many_keys.Slice(0, n, 200));
  }
}

TEST(ExactBitsTest, DoNotDependOnThreadsOrTheOrderOfQuanta) {
  const LayerShape shape = {2, 4, 16, 16, 0.25F};
  const auto engine = MakeExact(shape);
  const std::int64_t position = 2 * 16384 + 5;
  const std::int64_t count = 150;
  const Tokens tokens = RandomTokens(shape, position, 25);
  const std::vector<float> queries = RandomValues(count * shape.query_row(), 26);
  const Snapshot snapshot = At(*engine, tokens, position);
  const Answers expected = Attend(*engine, snapshot, queries.data(), count);

  Answers answers = Unwritten(shape, count);
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  plan->Reset(Group(snapshot, queries.data(), count), View(answers));
  ASSERT_EQ(plan->chains(), 2 * 2 * 3);
  // Each thread goes round its chains, one quantum of each at a time.
  const auto work = [&](std::int64_t first) {
    Scratch scratch;
    std::vector<std::int64_t> open;
    for (std::int64_t chain = first; chain < plan->chains(); chain += 2) open.push_back(chain);
    while (!open.empty()) {
      std::erase_if(open, [&](std::int64_t chain) { return plan->Run(chain, scratch); });
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  Scratch scratch;
  plan->Finish(scratch);
  EXPECT_TRUE(answers == expected);
}

TEST(ExactBitsTest, DoNotDependOnWhatAPlanDidBefore) {
  const LayerShape shape = {1, 2, 16, 20, 0.25F};
  const auto engine = MakeExact(shape);
  const Tokens tokens = RandomTokens(shape, 16384 + 100, 27);
  const std::vector<float> queries = RandomValues(300 * shape.query_row(), 28);
  const Asked asked = {.top_k = 3};
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  Scratch scratch;
  for (const std::int64_t position : {16384 + 100, 90, 16384 + 70, 0}) {
    const Snapshot snapshot = At(*engine, tokens, position);
    for (const std::int64_t n : {300, 1, 20}) {
      const Answers expected = Attend(*engine, snapshot, queries.data(), n, asked);
      Answers answers = Unwritten(shape, n, asked);
      plan->Reset(Group(snapshot, queries.data(), n), View(answers, asked));
      for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
        while (!plan->Run(chain, scratch)) {
        }
      }
      plan->Finish(scratch);
      EXPECT_TRUE(answers == expected) << position << " " << n;
    }
  }
}

// A core does 1e8 operations and reads 16 MB in a millisecond. No smaller than a fifth of one
// either: to enter and leave a quantum is work too.
TEST(ExactPlanTest, AQuantumIsAMillisecondOfWorkAtMostUnlessABlockIsMore) {
  struct Shape {
    std::int64_t query_heads, key_dim, value_dim, queries, tokens;
    DataType storage;
  };
  for (const Shape& s :
       {Shape{1, 64, 64, 192, 4096, DataType::kF32}, Shape{1, 64, 64, 192, 4096, DataType::kBf16},
        Shape{4, 16, 16, 48, 8192, DataType::kF32}, Shape{1, 128, 128, 192, 2048, DataType::kF32},
        Shape{1, 15, 80, 64, 8192, DataType::kF32}, Shape{1, 128, 128, 1, 16384, DataType::kF32},
        Shape{2, 256, 256, 2, 16384, DataType::kBf16},
        Shape{1, 1024, 512, 192, 512, DataType::kF32},
        Shape{1, 4096, 4096, 192, 320, DataType::kF32}}) {
    const LayerShape shape = {1, s.query_heads, s.key_dim, s.value_dim, 0.125F};
    SCOPED_TRACE(::testing::Message() << s.query_heads * s.queries << " rows, d_k=" << s.key_dim
                                      << " d_v=" << s.value_dim);
    const auto engine = MakeExact(shape, s.storage);
    Tokens tokens = RandomTokens(shape, s.tokens, 29);
    tokens.Round(*engine);
    const std::vector<float> queries = RandomValues(s.queries * shape.query_row(), 30);
    Answers answers = Unwritten(shape, s.queries);
    const Snapshot snapshot = At(*engine, tokens, s.tokens);
    const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
    plan->Reset(Group(snapshot, queries.data(), s.queries), View(answers));
    ASSERT_EQ(plan->chains(), 1);
    Scratch scratch;
    std::int64_t quanta = 1;
    while (!plan->Run(0, scratch)) ++quanta;

    const double elements = static_cast<double>(s.key_dim + s.value_dim);
    const double rows = static_cast<double>(s.query_heads * s.queries);
    const double block_milliseconds =
        std::max(2 * rows * elements * 64 / 1e8,
                 elements * 64 * (s.storage == DataType::kBf16 ? 2 : 4) / 16e6);
    const double blocks = static_cast<double>(s.tokens) / 64;
    const double quantum = block_milliseconds * blocks / static_cast<double>(quanta);
    EXPECT_LE(quantum, std::max(1.0, block_milliseconds));
    EXPECT_GE(quantum, 0.2);
  }
}

// Short keys whose scores ascend once took half a second in a quantum.
TEST(ExactPlanTest, AQuantumCountsTheMovesOfTopKeys) {
  const LayerShape shape = {1, 1, 1, 1, 1.0F};
  const auto engine = MakeExact(shape);
  const std::int64_t blocks = 16;
  const Snapshot snapshot = At(*engine, RandomTokens(shape, blocks * 64, 31), blocks * 64);
  const std::vector<float> queries = RandomValues(192, 32);
  const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
  const auto quanta = [&](const Asked& asked) {
    Answers answers = Unwritten(shape, 192, asked);
    plan->Reset(Group(snapshot, queries.data(), 192), View(answers, asked));
    EXPECT_EQ(plan->chains(), 1);
    Scratch scratch;
    std::int64_t count = 1;
    while (!plan->Run(0, scratch)) ++count;
    return count;
  };
  EXPECT_EQ(quanta({}), 1);
  EXPECT_EQ(quanta({.top_k = 8}), 4);
  EXPECT_EQ(quanta({.top_k = 64}), blocks);
}

}  // namespace
}  // namespace attnd::engine::exact_test
