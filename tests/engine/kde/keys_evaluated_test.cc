// What counts as an evaluated key is the same in all modes: keys, each once, and summaries whose
// score with the row was computed in f32.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/kde/certified/certified_plan.h"
#include "engine/kde/index/index_state.h"
#include "engine/kde/paper/kdeformer.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/engine/kde/modes_harness.h"

namespace attnd::engine::kde_test {
namespace {

constexpr std::int64_t kTokens = 4500;

class KdeKeysEvaluated : public ::testing::Test {
 protected:
  KdeKeysEvaluated() : tokens_(ClusteredTokens(kModeShape, kTokens, 60, 71)) {
    for (std::int64_t t = 3; t < tokens_.count; t += 11) tokens_.Mask(t);
    queries_ = KeysAsQueries(tokens_, 43);
    count_ = std::ssize(queries_) / kModeShape.query_row();
    unmasked_ = std::ranges::count(tokens_.mask, 1);
  }

  Answers AskAll(const Engine& engine, const Asked& asked = {}) const {
    return Ask(engine, exact_test::At(engine, tokens_, kTokens), queries_.data(), count_, asked);
  }

  Tokens tokens_;
  std::vector<float> queries_;
  std::int64_t count_ = 0;
  std::int64_t unmasked_ = 0;
};

class KdeKeysEvaluatedIn : public KdeKeysEvaluated, public ::testing::WithParamInterface<Mode> {};

// Masked tokens of raw blocks and of the open one once counted, in modes AUTO and INDEX.
TEST_P(KdeKeysEvaluatedIn, AreThoseThatAreVisibleWhereAllAreRead) {
  const auto engine = MakeKde(kModeShape, GetParam());
  for (const std::int64_t tokens : {5, 64, 70, 200}) {
    const Tokens first = FirstTokens(tokens_, tokens);
    const Answers answers =
        Ask(*engine, exact_test::At(*engine, first, tokens), queries_.data(), 3);
    for (const std::int64_t keys : answers.keys) {
      EXPECT_EQ(keys, std::ranges::count(first.mask, 1)) << tokens;
    }
  }
}

TEST_F(KdeKeysEvaluated, OfCausalRowsAreThoseUpToTheirOwn) {
  const Tokens first = FirstTokens(tokens_, 64 + 40);
  for (const Mode mode : {Mode::kAuto, Mode::kIndex, Mode::kCertified}) {
    const auto engine = MakeKde(kModeShape, mode);
    const Answers answers = Ask(*engine, exact_test::At(*engine, first, first.count),
                                queries_.data(), 40, {.causal = true, .first_cut = 1});
    for (std::int64_t i = 0; i < 40; ++i) {
      const std::int64_t visible =
          std::accumulate(first.mask.begin(), first.mask.begin() + 64 + i + 1, std::int64_t{0});
      EXPECT_EQ(answers.keys[Size(i * kModeShape.query_heads)], visible) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllModes, KdeKeysEvaluatedIn,
                         ::testing::Values(Mode::kAuto, Mode::kIndex, Mode::kCertified,
                                           Mode::kPaper));

// With a threshold that reads every leaf: all keys, and the summaries that were looked at.
TEST_F(KdeKeysEvaluated, IndexCountsSummariesOnceAndKeysOnce) {
  const auto engine = MakeKde(kModeShape, Mode::kIndex);
  const Snapshot snapshot = exact_test::At(*engine, tokens_, kTokens);
  const auto& state = static_cast<const IndexState&>(*snapshot.sealed);
  std::int64_t summaries = 0;
  for (const auto& span : state.spans()) summaries += span->heads.front()->leaves();
  ASSERT_GT(summaries, 50);
  const Answers answers = AskAll(*engine);
  bool some = false;
  for (std::size_t row = 0; row < answers.keys.size(); ++row) {
    ASSERT_LE(answers.keys[row], unmasked_ + summaries);
    ASSERT_GE(answers.keys[row], summaries);
    if (answers.paths[row] == Number(AnswerPath::kExact)) {
      ASSERT_EQ(answers.keys[row], unmasked_ + summaries);
    } else {
      some = some || answers.keys[row] < unmasked_ / 2;
    }
  }
  EXPECT_TRUE(some) << "what a row did not read does not count";
}

// A key that was drawn twice once counted twice.
TEST_F(KdeKeysEvaluated, CertifiedCountsDrawnKeysOnceAndScannedKeysNever) {
  const auto engine = MakeKde(kModeShape, Mode::kCertified);
  const Accuracy fine = {.target_error = 0.01 / 8};
  ASSERT_EQ(OptionsFor(fine).pairs, 4096);
  const Accuracy most = {.target_error = fine.target_error, .max_keys = kTokens - 200};
  ASSERT_FALSE(EvaluatesAll(most, kTokens / 64 * 64));
  const Answers answers = AskAll(*engine, AskedOf(most));
  const Answers few = AskAll(*engine, AskedOf({.target_error = 0.0, .max_keys = 40}));
  for (std::size_t row = 0; row < answers.keys.size(); ++row) {
    ASSERT_EQ(answers.paths[row], Number(AnswerPath::kCertified));
    ASSERT_LE(answers.keys[row], unmasked_);
    ASSERT_LE(few.keys[row], 40 + kTokens % kBlockTokens);
    ASSERT_GT(answers.keys[row], few.keys[row]);
  }
}

// Rows were once told the mean of their batch.
TEST_F(KdeKeysEvaluated, PaperCountsAllKeysOfPilotsAndBlockAndSampleOfOthers) {
  const auto engine = MakeKde(kModeShape, Mode::kPaper);
  const Answers answers = AskAll(*engine);
  ASSERT_GT(count_, Kdeformer::kPilots);
  for (std::int64_t head = 0; head < kModeShape.query_heads; ++head) {
    std::int64_t pilots = 0;
    for (std::int64_t i = 0; i < count_; ++i) {
      const std::int64_t keys = answers.keys[Size(i * kModeShape.query_heads + head)];
      if (keys == unmasked_) {
        ++pilots;
      } else {
        ASSERT_LE(keys, 256 + 256);
        ASSERT_GT(keys, 128);
      }
    }
    EXPECT_GT(pilots, 0);
    EXPECT_LE(pilots, Kdeformer::kPilots);
  }
}

}  // namespace
}  // namespace attnd::engine::kde_test
