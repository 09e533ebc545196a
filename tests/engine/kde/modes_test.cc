// Mode CERTIFIED as an engine: what it answers, what it says of it, and what an answer may not
// depend on. Memory of plans of both modes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/kde/certified/certified_plan.h"
#include "engine/kde/certified/certified_state.h"
#include "engine/kde/certified/residual_sample.h"
#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/modes_harness.h"
#include "tests/engine/kde/paper_harness.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::engine::kde_test {
namespace {

struct Real {
  Tokens tokens;
  std::vector<float> queries;
};

Real RealWords() {
  data::TensorSet set = data::WordVectors();
  return {{set.shape, set.tokens, set.layers[0].keys, set.layers[0].values,
           std::vector<std::uint8_t>(Size(set.tokens), 1)},
          set.layers[0].queries};
}

class KdeCertifiedMode : public ::testing::Test {
 protected:
  static constexpr std::int64_t kTokens = 45 * 64 + 40;
  static constexpr Accuracy kLoose = {.target_error = 0.05};  // of which 1,280 tokens are exact

  KdeCertifiedMode()
      : engine_(MakeKde(kModeShape, Mode::kCertified)),
        tokens_(ClusteredTokens(kModeShape, kTokens, 60, 71)) {
    for (std::int64_t t = 3; t < tokens_.count; t += 11) tokens_.Mask(t);
    queries_ = KeysAsQueries(tokens_, 43, 1.5F);
    count_ = std::ssize(queries_) / kModeShape.query_row();
  }

  const float* query(std::int64_t i) const { return queries_.data() + i * kModeShape.query_row(); }
  static Asked Loose() { return AskedOf(kLoose, 5); }

  const std::unique_ptr<const Engine> engine_;
  Tokens tokens_;
  std::vector<float> queries_;
  std::int64_t count_ = 0;
};

TEST_F(KdeCertifiedMode, EvaluatesShortContextsExactly) {
  for (const std::int64_t tokens : {1, 5, 64, 65, 700, 1280 + 40}) {
    const Tokens first = FirstTokens(tokens_, tokens);
    const Snapshot snapshot = exact_test::At(*engine_, first, tokens);
    ExpectExact(first, queries_, Ask(*engine_, snapshot, query(0), count_, AskedOf(kLoose)));
  }
}

TEST_F(KdeCertifiedMode, AnswersNothingOfNothing) {
  Tokens none = FirstTokens(tokens_, 0);
  ExpectEmpty(Ask(*engine_, exact_test::At(*engine_, none, 0), query(0), 3, Loose()));
  none = tokens_;
  for (std::int64_t t = 0; t < none.count; ++t) none.Mask(t);
  ExpectEmpty(Ask(*engine_, exact_test::At(*engine_, none, none.count), query(0), 3, Loose()));
}

TEST_F(KdeCertifiedMode, MarksRowsThatLeaveF32) {
  std::vector<float> huge(queries_.begin(), queries_.begin() + kModeShape.query_row());
  for (float& x : huge) x *= 1e38F;
  const Answers answers =
      Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), huge.data(), 1, Loose());
  const auto exact = exact_test::MakeExact(kModeShape);
  const exact_test::Answers truth = exact_test::Attend(
      *exact, exact_test::At(*exact, tokens_, kTokens), huge.data(), 1, {.top_k = 5});
  EXPECT_EQ(answers.exact.flags, truth.flags);
  EXPECT_EQ(truth.flags[0], static_cast<std::uint8_t>(RowFlag::kOverflow));
  EXPECT_TRUE(std::isnan(answers.exact.log_normalizers[0]));
  EXPECT_TRUE(std::isnan(answers.bounds[0]));
  EXPECT_EQ(answers.exact.outputs, truth.outputs);
  EXPECT_EQ(answers.exact.top_positions, truth.top_positions);
}

TEST_F(KdeCertifiedMode, AreTheRowsOfCertifiedRow) {
  const Snapshot snapshot = exact_test::At(*engine_, tokens_, kTokens);
  const auto& state = static_cast<const CertifiedState&>(*snapshot.sealed);
  const Answers answers = Ask(*engine_, snapshot, query(0), count_, Loose());
  const BlockLayout layout(kModeShape);
  std::vector<float> open_keys(Size(layout.key_elements()), 0.0F);
  std::vector<float> open_values(Size(layout.elements() - layout.key_elements()), 0.0F);
  for (std::int64_t i = 0; i < count_; i += 5) {
    for (std::int64_t head = 0; head < kModeShape.query_heads; ++head) {
      const std::int64_t row = i * kModeShape.query_heads + head;
      const std::int64_t kv_head = head / kModeShape.group_size();
      std::vector<CertifiedBlock> blocks;
      for (std::int64_t b = 0; b < state.blocks(); ++b) blocks.push_back(state.block(kv_head, b));
      for (std::int64_t t = 0; t < snapshot.rows; ++t) {
        const std::int64_t token = snapshot.sealed_tokens + t;
        for (std::int64_t c = 0; c < kModeShape.key_dim; ++c) {
          open_keys[Size(c * kBlockTokens + t)] =
              tokens_.keys[Size(token * kModeShape.key_row() + kv_head * kModeShape.key_dim + c)];
        }
        for (std::int64_t c = 0; c < kModeShape.value_dim; ++c) {
          open_values[Size(t * layout.padded_value_dim + c)] = tokens_.values[Size(
              token * kModeShape.value_row() + kv_head * kModeShape.value_dim + c)];
        }
      }
      blocks.push_back({{open_keys.data(), open_values.data(), snapshot.valid}, {}, {}});
      const float* unscaled = queries_.data() + row * kModeShape.key_dim;
      std::vector<float> scaled(unscaled, unscaled + kModeShape.key_dim);
      for (float& x : scaled) x *= kModeShape.scale;
      CertifiedRow certified;
      certified.Reset({kModeShape.key_dim, kModeShape.value_dim, layout.padded_value_dim},
                      OptionsFor(kLoose), blocks, scaled.data(),
                      RowSeed(0, 0, head, kTokens, unscaled, kModeShape.key_dim));
      while (!certified.Run()) {
      }
      const float* output = certified.output();
      const auto first = answers.exact.outputs.begin() + row * kModeShape.value_dim;
      ASSERT_TRUE(SameBits<float>({output, output + kModeShape.value_dim},
                                  {first, first + kModeShape.value_dim}))
          << i << " " << head;
      ASSERT_EQ(static_cast<float>(certified.answer().log_normalizer),
                answers.exact.log_normalizers[Size(row)]);
      ASSERT_EQ(answers.paths[Size(row)], Number(AnswerPath::kCertified));
    }
  }
}

// Layers once drew the same keys: what one missed, all of them missed.
TEST_F(KdeCertifiedMode, DrawsForEachLayerByItself) {
  const Snapshot snapshot = exact_test::At(*engine_, tokens_, kTokens);
  Asked asked = AskedOf(kLoose);
  const Answers first = Ask(*engine_, snapshot, query(0), count_, asked);
  asked.layer = 7;
  const Answers other = Ask(*engine_, snapshot, query(0), count_, asked);
  std::int64_t differ = 0;
  for (std::size_t i = 0; i < first.exact.log_normalizers.size(); ++i) {
    differ += first.exact.log_normalizers[i] != other.exact.log_normalizers[i] ? 1 : 0;
  }
  EXPECT_GT(differ, std::ssize(first.exact.log_normalizers) / 2);
  EXPECT_TRUE(Ask(*MakeKde(kModeShape, Mode::kCertified), snapshot, query(0), count_, asked) ==
              other);
}

TEST_F(KdeCertifiedMode, BitsDoNotDependOnTheNumberOfQueries) {
  const Snapshot snapshot = exact_test::At(*engine_, tokens_, kTokens);
  const Answers all = Ask(*engine_, snapshot, query(0), count_, Loose());
  for (const std::int64_t n : {1, 2, 3, 7, 16, 33}) {
    for (std::int64_t first = 0; first < count_; first += std::max(n, count_ / 3)) {
      const std::int64_t count = std::min(n, count_ - first);
      EXPECT_TRUE(Ask(*engine_, snapshot, query(first), count, Loose()) ==
                  all.Slice(first, count, count_))
          << count << " queries from " << first;
    }
  }
}

TEST_F(KdeCertifiedMode, BitsDoNotDependOnTheSpansOfSealing) {
  const Answers at_once =
      Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), query(0), count_, Loose());
  for (const auto& spans : {std::vector<std::int64_t>{1}, {2, 1, 5}, {17, 3}}) {
    const Snapshot snapshot = exact_test::At(*engine_, tokens_, kTokens, spans);
    EXPECT_TRUE(Ask(*engine_, snapshot, query(0), count_, Loose()) == at_once);
  }
}

TEST_F(KdeCertifiedMode, BitsOfStepsAreThoseOfAttendsAtEachPosition) {
  const std::int64_t sealed = kTokens / kBlockTokens * kBlockTokens;
  const std::int64_t steps = kTokens - sealed;
  Asked causal = Loose();
  causal.causal = true;
  causal.first_cut = 1;
  const Answers together =
      Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), query(0), steps, causal);
  for (std::int64_t i = 0; i < steps; i += 7) {
    EXPECT_TRUE(Ask(*engine_, exact_test::At(*engine_, tokens_, sealed + 1 + i), query(i), 1,
                    Loose()) == together.Slice(i, 1, steps))
        << i;
  }
}

TEST_F(KdeCertifiedMode, BitsDoNotDependOnForksAndMaskedTokens) {
  const Asked asked = Loose();
  Snapshot last = exact_test::At(*engine_, tokens_, kTokens);
  const Answers expected = Ask(*engine_, last, query(0), count_, asked);
  Tokens other = tokens_;
  for (std::int64_t t = 3; t < other.count; t += 11) {
    std::fill_n(other.keys.begin() + t * kModeShape.key_row(), kModeShape.key_row(), 5.0F);
    std::fill_n(other.values.begin() + t * kModeShape.value_row(), kModeShape.value_row(), -3.0F);
  }
  EXPECT_TRUE(Ask(*engine_, exact_test::At(*engine_, other, kTokens), query(0), count_, asked) ==
              expected);

  const std::int64_t forked = 30 * kBlockTokens;
  const Snapshot base = exact_test::At(*engine_, tokens_, forked + 1);
  const auto dropped = engine_->Clone(*base.sealed);
  exact_test::SealTokens(*engine_, ClusteredTokens(kModeShape, kTokens, 9, 5), forked,
                         last.sealed_tokens, *dropped);
  const auto kept = engine_->Clone(*base.sealed);
  exact_test::SealTokens(*engine_, tokens_, forked, last.sealed_tokens, *kept);
  last.sealed = kept;
  EXPECT_TRUE(Ask(*engine_, last, query(0), count_, asked) == expected);
}

TEST_F(KdeCertifiedMode, LargestKeysAreExact) {
  const Answers answers =
      Ask(*engine_, exact_test::At(*engine_, tokens_, kTokens), query(0), count_, Loose());
  const auto exact = exact_test::MakeExact(kModeShape);
  const exact_test::Answers truth = exact_test::Attend(
      *exact, exact_test::At(*exact, tokens_, kTokens), query(0), count_, {.top_k = 5});
  EXPECT_EQ(answers.exact.top_positions, truth.top_positions);
  for (const std::int64_t keys : answers.keys) ASSERT_EQ(keys, std::ranges::count(tokens_.mask, 1));
  for (std::size_t i = 0; i < truth.top_weights.size(); ++i) {
    ASSERT_NEAR(answers.exact.top_weights[i], truth.top_weights[i],
                0.05 * static_cast<double>(truth.top_weights[i]));
  }
}

TEST_F(KdeCertifiedMode, BudgetsBoundTheKeysEvaluated) {
  const Snapshot snapshot = exact_test::At(*engine_, tokens_, kTokens);
  for (const std::int64_t budget : {1, 4, 20, 200, 1000}) {
    const Answers answers = Ask(*engine_, snapshot, query(0), count_,
                                AskedOf({.target_error = 1e-6, .max_keys = budget}));
    for (std::size_t row = 0; row < answers.keys.size(); ++row) {
      ASSERT_LE(answers.keys[row], budget + snapshot.rows);
      ASSERT_EQ(answers.exact.flags[row], 0);
      ASSERT_EQ(answers.errors[row] == kInfinity, budget < 5) << answers.errors[row];
    }
  }
  EXPECT_TRUE(EvaluatesAll({}, 1536));
  EXPECT_FALSE(EvaluatesAll({}, 1537));
  EXPECT_FALSE(EvaluatesAll({.target_error = 0.0, .max_keys = 1000}, 1001));
}

TEST(KdeCertifiedWordFigures, RowsAreWithinTheirErrorsAndBounds) {
  const Real words = RealWords();
  const auto engine = MakeKde(words.tokens.shape, Mode::kCertified);
  const Snapshot snapshot = exact_test::At(*engine, words.tokens, words.tokens.count);
  std::vector<float> queries;
  constexpr std::int64_t kStep = 8;
  const std::int64_t width = words.tokens.shape.query_row();
  for (std::int64_t i = 0; i < words.tokens.count; i += kStep) {
    queries.insert(queries.end(), words.queries.begin() + i * width,
                   words.queries.begin() + (i + 1) * width);
  }
  const std::int64_t count = words.tokens.count / kStep;
  const oracle::Answers truth = oracle::Softmax(
      words.tokens.context(), {queries.data(), oracle::AllVisible(count, words.tokens.count)});
  double last = 1.0;
  for (const double target : {0.05, 0.01, 0.005}) {
    const Answers answers =
        Ask(*engine, snapshot, queries.data(), count, AskedOf({.target_error = target}));
    const std::vector<double> errors = UnitErrors(words.tokens, queries, answers);
    std::int64_t within = 0;
    std::int64_t bounded = 0;
    for (std::size_t row = 0; row < errors.size(); ++row) {
      ASSERT_EQ(answers.paths[row], Number(AnswerPath::kCertified));
      ASSERT_LT(answers.keys[row], words.tokens.count / 2);
      within += errors[row] <= static_cast<double>(answers.errors[row]) + 1e-6 ? 1 : 0;
      bounded +=
          static_cast<double>(answers.bounds[2 * row]) <= truth.log_normalizers[row] &&
                  static_cast<double>(answers.bounds[2 * row + 1]) >= truth.log_normalizers[row]
              ? 1
              : 0;
    }
    EXPECT_GE(within, 95 * std::ssize(errors) / 100) << target;
    EXPECT_GE(bounded, 95 * std::ssize(errors) / 100) << target;
    const double most = Quantile(errors, 0.95);
    EXPECT_LT(most, target);
    EXPECT_LT(most, last);
    last = most;
    std::vector<double> stated(answers.errors.begin(), answers.errors.end());
    EXPECT_LT(Quantile(stated, 0.95), target) << "so that the target is met";
  }
}

// Peaked and flat heads, in which 8 bits hold keys less well than in word vectors.
TEST(KdeCertifiedRecogniserFigures, RowsAreWithinTheirErrors) {
  const data::TensorSet set = data::TextRecogniserHeads();
  const Tokens tokens = {set.shape, set.tokens, set.layers[0].keys, set.layers[0].values,
                         std::vector<std::uint8_t>(Size(set.tokens), 1)};
  const auto engine = MakeKde(set.shape, Mode::kCertified);
  const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
  std::vector<float> queries;
  const std::int64_t width = set.shape.query_row();
  for (std::int64_t i = 0; i < set.tokens; i += 8) {
    queries.insert(queries.end(), set.layers[0].queries.begin() + i * width,
                   set.layers[0].queries.begin() + (i + 1) * width);
  }
  const std::int64_t count = std::ssize(queries) / width;
  const Answers answers =
      Ask(*engine, snapshot, queries.data(), count, AskedOf({.target_error = 0.05}));
  const std::vector<double> errors = UnitErrors(tokens, queries, answers);
  std::int64_t within = 0;
  std::int64_t sampled = 0;
  for (std::size_t row = 0; row < errors.size(); ++row) {
    within += errors[row] <= static_cast<double>(answers.errors[row]) + 1e-6 ? 1 : 0;
    sampled += answers.paths[row] == Number(AnswerPath::kCertified) ? 1 : 0;
  }
  EXPECT_GE(within, 95 * std::ssize(errors) / 100);
  EXPECT_GE(sampled, 95 * std::ssize(errors) / 100);
  EXPECT_LT(Quantile(errors, 0.95), 0.05);
}

TEST(KdeCertifiedWordFigures, MemoryIsWhatTheEngineSays) {
  const Real words = RealWords();
  const auto engine = MakeKde(words.tokens.shape, Mode::kCertified);
  const std::int64_t tokens = words.tokens.count;
  const std::int64_t empty = engine->NewState()->bytes();
  const std::int64_t full = exact_test::At(*engine, words.tokens, tokens).sealed->bytes();
  // 63 blocks, of segments for 64.
  EXPECT_LE(full, engine->fixed_bytes() + (tokens + 64) * engine->bytes_per_token());
  EXPECT_GE(full - empty, (tokens - 64) * (engine->bytes_per_token() - 8));
  EXPECT_GE(engine->AppendBytes(0, tokens), full - empty);
  const auto raw = exact_test::MakeExact(words.tokens.shape);
  EXPECT_LT(static_cast<double>(engine->bytes_per_token()),
            1.35 * static_cast<double>(raw->bytes_per_token()));
}

TEST(KdeModes, PlansTakeTheMemoryThatIsStated) {
#ifdef ATTND_SANITIZED
  GTEST_SKIP() << "a sanitizer brings its own allocator";
#else
  const LayerShape shape = {1, 2, 12, 20, 0.3F};
  const Tokens tokens = ClusteredTokens(shape, 20000, 40, 9);
  const std::vector<float> queries = KeysAsQueries(tokens, 200);
  const std::int64_t count = std::ssize(queries) / shape.query_row();
  for (const Mode mode : {Mode::kCertified, Mode::kPaper}) {
    const auto engine = MakeKde(shape, mode);
    const Snapshot snapshot = exact_test::At(*engine, tokens, tokens.count);
    const exact_test::Asked asked = {.top_k = 5};
    exact_test::Answers answers = exact_test::Unwritten(shape, count, asked);
    QueryGroup group = exact_test::Group(snapshot, queries.data(), count, asked);
    group.accuracy.target_error = 0.003;
    Scratch scratch;
    const std::int64_t before = BytesInUse();
    std::int64_t peak = before;
    const std::unique_ptr<AttendPlan> plan = engine->NewPlan();
    plan->Reset(group, exact_test::View(answers, asked));
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      bool done = false;
      while (!done) {
        done = plan->Run(chain, scratch);
        peak = std::max(peak, BytesInUse());
      }
    }
    const std::int64_t stated = engine->PlanBytes(tokens.count, count, 5);
    EXPECT_LE(peak - before, stated + (1 << 20));  // of which the scratch takes a part
    EXPECT_GE(peak - before, stated / 6);
    EXPECT_GT(engine->PlanBytes(std::int64_t{1} << 40, 1000, 64), std::int64_t{1} << 40);
  }
#endif
}

}  // namespace
}  // namespace attnd::engine::kde_test
