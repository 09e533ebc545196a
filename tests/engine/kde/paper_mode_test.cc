// Mode PAPER as an engine: KDEformer of the whole batch, and what it says of its answers.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/kde/paper/kdeformer.h"
#include "engine/kde/paper/paper_plan.h"
#include "engine/random.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/modes_harness.h"

namespace attnd::engine::kde_test {
namespace {

class KdePaperMode : public ::testing::Test {
 protected:
  static constexpr std::int64_t kTokens = 45 * 64 + 40;

  KdePaperMode()
      : engine_(MakeKde(kModeShape, Mode::kPaper)),
        tokens_(ClusteredTokens(kModeShape, kTokens, 60, 71)) {
    for (std::int64_t t = 3; t < tokens_.count; t += 11) tokens_.Mask(t);
    queries_ = KeysAsQueries(tokens_, 7);
    count_ = std::ssize(queries_) / kModeShape.query_row();
  }

  const std::unique_ptr<const Engine> engine_;
  Tokens tokens_;
  std::vector<float> queries_;
  std::int64_t count_ = 0;
};

// Called directly, on rows gathered by hand.
TEST_F(KdePaperMode, IsKdeformerOfTheWholeBatch) {
  Asked asked = AskedOf({}, 3);
  asked.layer = 5;
  const Answers answers = Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens, {3, 1}),
                              queries_.data(), count_, asked);
  for (std::int64_t head = 0; head < kModeShape.query_heads; ++head) {
    const std::int64_t kv_head = head / kModeShape.group_size();
    std::vector<float> keys;
    std::vector<float> values;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (tokens_.mask[Size(t)] == 0) continue;
      const auto key =
          tokens_.keys.begin() + t * kModeShape.key_row() + kv_head * kModeShape.key_dim;
      keys.insert(keys.end(), key, key + kModeShape.key_dim);
      const auto value =
          tokens_.values.begin() + t * kModeShape.value_row() + kv_head * kModeShape.value_dim;
      values.insert(values.end(), value, value + kModeShape.value_dim);
    }
    std::vector<float> scaled;
    for (std::int64_t i = 0; i < count_; ++i) {
      for (std::int64_t c = 0; c < kModeShape.key_dim; ++c) {
        scaled.push_back(
            kModeShape.scale *
            queries_[Size((i * kModeShape.query_heads + head) * kModeShape.key_dim + c)]);
      }
    }
    const std::int64_t n = std::ssize(keys) / kModeShape.key_dim;
    std::vector<float> outputs(Size(count_ * kModeShape.value_dim));
    std::vector<float> log_normalizers(Size(count_));
    KdeformerConfig config = PaperConfigFor({});
    config.seed = StreamSeed(StreamSeed(0, 5), static_cast<std::uint64_t>(head));
    const auto kdeformer =
        Kdeformer::Create({DenseRows(scaled.data(), count_, kModeShape.key_dim),
                           DenseRows(keys.data(), n, kModeShape.key_dim),
                           DenseRows(values.data(), n, kModeShape.value_dim), 1.0F},
                          config, {{outputs.data(), kModeShape.value_dim}, log_normalizers.data()})
            .value();
    Scratch scratch;
    while (!kdeformer->Step(scratch)) {
    }
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::int64_t row = i * kModeShape.query_heads + head;
      for (std::int64_t c = 0; c < kModeShape.value_dim; ++c) {
        ASSERT_EQ(answers.exact.outputs[Size(row * kModeShape.value_dim + c)],
                  outputs[Size(i * kModeShape.value_dim + c)]);
      }
      ASSERT_EQ(answers.exact.log_normalizers[Size(row)], log_normalizers[Size(i)]);
      ASSERT_EQ(answers.paths[Size(row)], Number(AnswerPath::kPaper));
      ASSERT_EQ(answers.errors[Size(row)], kInfinity);
      ASSERT_EQ(answers.bounds[Size(2 * row)], -kInfinity);
      ASSERT_EQ(answers.bounds[Size(2 * row + 1)], kInfinity);
      ASSERT_EQ(answers.masses[Size(row)], 0.0F);
      ASSERT_EQ(answers.keys[Size(row)], n) << "for the largest";
    }
  }
  asked.top_k = 0;
  const auto again = [&] {
    return Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), queries_.data(), count_, asked)
        .exact.outputs;
  };
  EXPECT_EQ(again(), answers.exact.outputs);
  asked.layer = 6;
  EXPECT_NE(again(), answers.exact.outputs);
}

TEST_F(KdePaperMode, IsNearTheTruthAndEvaluatesFewKeys) {
  const Answers answers =
      Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), queries_.data(), count_);
  const std::vector<double> errors = UnitErrors(tokens_, queries_, answers);
  EXPECT_LT(Quantile(errors, 0.95), 0.5);
  const auto sum = [](const Answers& of) {
    return std::accumulate(of.keys.begin(), of.keys.end(), std::int64_t{0});
  };
  EXPECT_LT(sum(answers), count_ * kModeShape.query_heads * (256 + 256 + kTokens * 64 / count_));
  const Answers more = Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), queries_.data(),
                           count_, AskedOf({.target_error = 0.03}));
  EXPECT_LT(Quantile(UnitErrors(tokens_, queries_, more), 0.95), Quantile(errors, 0.95));
  const Answers fewer = Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), queries_.data(),
                            count_, AskedOf({.target_error = 0.0, .max_keys = 200}));
  EXPECT_GT(Quantile(UnitErrors(tokens_, queries_, fewer), 0.95), Quantile(errors, 0.95));
  EXPECT_LT(sum(fewer), sum(answers));
}

TEST_F(KdePaperMode, SmallContextsAreExact) {
  for (const std::int64_t tokens : {1, 5, 63, 64, 65, 200, 279}) {
    const Tokens first = FirstTokens(tokens_, tokens);
    for (const std::int64_t n : {std::int64_t{1}, count_}) {
      const std::vector<float> queries(queries_.begin(),
                                       queries_.begin() + n * kModeShape.query_row());
      ExpectExact(first, queries,
                  Ask(*engine_, exact_test::At(*engine_, first, tokens), queries.data(), n));
    }
  }
  // All columns sampled.
  ExpectExact(tokens_, queries_,
              Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), queries_.data(), count_,
                  AskedOf({.target_error = 0.018})));
}

TEST_F(KdePaperMode, AnswersNothingOfNothing) {
  Tokens none = FirstTokens(tokens_, 0);
  const Asked asked = AskedOf({}, 2);
  ExpectEmpty(Ask(*engine_, exact_test::At(*engine_, none, 0), queries_.data(), 3, asked));
  none = tokens_;
  for (std::int64_t t = 0; t < none.count; ++t) none.Mask(t);
  ExpectEmpty(Ask(*engine_, exact_test::At(*engine_, none, none.count), queries_.data(), 3, asked));
}

TEST_F(KdePaperMode, LargestKeysAreExact) {
  const Answers answers = Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), queries_.data(),
                              20, AskedOf({}, 5));
  const auto exact = exact_test::MakeExact(kModeShape);
  const exact_test::Answers truth = exact_test::Attend(
      *exact, exact_test::At(*exact, tokens_, kTokens), queries_.data(), 20, {.top_k = 5});
  EXPECT_EQ(answers.exact.top_positions, truth.top_positions);
}

TEST_F(KdePaperMode, AnswersScalesThatArePositiveForNobody) {
  for (const float scale : {0.0F, -0.3F}) {
    LayerShape shape = kModeShape;
    shape.scale = scale;
    Tokens tokens = FirstTokens(tokens_, 200);
    tokens.shape = shape;
    const auto engine = MakeKde(shape, Mode::kPaper);
    ExpectExact(tokens, queries_,
                Ask(*engine, exact_test::At(*engine, tokens, 200), queries_.data(), count_));
  }
}

}  // namespace
}  // namespace attnd::engine::kde_test
