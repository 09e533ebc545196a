// Audits change what is stated of errors, and nothing else.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/kde/index/index_state.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::kde_test {
namespace {

constexpr LayerShape kShape = {2, 4, 20, 24, 0.3F};
constexpr std::int64_t kTokens = 4700;
constexpr std::int64_t kStep = 17;  // tokens from query to query

class KdeAudits : public ::testing::Test {
 protected:
  KdeAudits()
      : tokens_(ClusteredTokens(kShape, kTokens, 60, 81)),
        queries_(KeysAsQueries(tokens_, kStep, 1.5F)),
        count_(static_cast<std::int64_t>(queries_.size()) / kShape.query_row()) {
    for (std::int64_t i = 0; i < count_; ++i) asked_.positions.push_back(kStep * i);
  }

  static std::unique_ptr<const Engine> Make(const AuditShares& audits) {
    return MakeKde(kShape, {.mode = KdeConfig::Mode::kIndex, .audits = audits});
  }

  static std::int64_t Audits(const Answers& answers) {
    return std::count_if(answers.audited.begin(), answers.audited.end(),
                         [](float error) { return error >= 0.0F; });
  }

  // Asks other queries until a thousand rows have been audited.
  static void Audit(const Engine& engine, const Snapshot& snapshot) {
    constexpr std::int64_t kOthers = 500;
    std::int64_t audits = 0;
    for (std::uint32_t seed = 0; audits < 1000; ++seed) {
      ASSERT_LT(seed, 100U);
      const std::vector<float> queries =
          RandomValues(kOthers * kShape.query_row(), 700 + seed, 1.5F);
      Asked asked;
      asked.positions.assign(kOthers, kTokens);
      audits += Audits(Ask(engine, snapshot, queries.data(), kOthers, asked));
    }
  }

  Answers AskAll(const Engine& engine, const Snapshot& snapshot) const {
    return Ask(engine, snapshot, queries_.data(), count_, asked_);
  }

  const Tokens tokens_;
  const std::vector<float> queries_;
  const std::int64_t count_;
  Asked asked_ = {.top_k = 5};
};

TEST_F(KdeAudits, NeverChangeAnAnswer) {
  const auto silent = Make({0.0, 0.0});
  const Answers expected = AskAll(*silent, exact_test::At(*silent, tokens_, kTokens));
  EXPECT_EQ(Audits(expected), 0);
  const auto engine = Make({100.0, 100.0});
  const Snapshot snapshot = exact_test::At(*engine, tokens_, kTokens);
  const Answers before = AskAll(*engine, snapshot);
  EXPECT_GT(Audits(before), count_ / 8);
  EXPECT_TRUE(before.SameAnswers(expected));
  EXPECT_TRUE(SameBits(before.errors, expected.errors));  // nothing was known when it was planned
  Audit(*engine, snapshot);
  const Answers after = AskAll(*engine, snapshot);
  EXPECT_TRUE(after.SameAnswers(expected));
  // The audits did something.
  EXPECT_FALSE(SameBits(after.errors, before.errors));
  for (std::size_t row = 0; row < after.paths.size(); ++row) {
    EXPECT_EQ(before.calibrated[row], before.paths[row] == 0 ? 1 : 0);
    EXPECT_EQ(after.calibrated[row], 1);
  }
}

// Without audits nothing is ever calibrated.
TEST_F(KdeAudits, AreWhatCalibrates) {
  const auto engine = Make({0.0, 100.0});
  const Snapshot snapshot = exact_test::At(*engine, tokens_, kTokens);
  const Answers first = AskAll(*engine, snapshot);
  for (int i = 0; i < 20; ++i) AskAll(*engine, snapshot);
  const Answers last = AskAll(*engine, snapshot);
  EXPECT_TRUE(last == first);
  EXPECT_EQ(Audits(last), 0);
  EXPECT_GT(std::count(last.calibrated.begin(), last.calibrated.end(), 0), count_);
}

// One query at a time has the same result.
TEST_F(KdeAudits, FindTheErrorsThatAreThere) {
  const auto engine = Make({100.0, 100.0});
  const Snapshot snapshot = exact_test::At(*engine, tokens_, kTokens);
  const Answers answers = AskAll(*engine, snapshot);
  const std::vector<double> errors = UnitErrors(tokens_, queries_, answers);
  std::int64_t audits = 0;
  for (std::size_t row = 0; row < errors.size(); ++row) {
    if (answers.audited[row] < 0.0F) continue;
    ++audits;
    // Their unit is the spread of sealed values.
    EXPECT_NEAR(static_cast<double>(answers.audited[row]), errors[row], 0.01 * errors[row] + 2e-5);
  }
  EXPECT_GT(audits, count_ / 8);
  std::int64_t again = 0;
  for (std::int64_t i = 0; i < count_; i += 3) {
    Asked asked = {.top_k = 5};
    asked.positions = {asked_.positions[Size(i)]};
    const Answers one = Ask(*engine, snapshot, queries_.data() + i * kShape.query_row(), 1, asked);
    const Answers same = answers.Slice(i, 1, count_);
    EXPECT_TRUE(one.SameAnswers(same));
    for (std::size_t row = 0; row < one.audited.size(); ++row) {
      if (one.audited[row] < 0.0F || same.audited[row] < 0.0F) continue;
      EXPECT_EQ(one.audited[row], same.audited[row]) << i;
      ++again;
    }
  }
  EXPECT_GT(again, 20);
}

TEST_F(KdeAudits, AreSharedByCopiesOfAState) {
  const auto engine = Make({100.0, 100.0});
  const Snapshot snapshot = exact_test::At(*engine, tokens_, kTokens - 64);
  Snapshot copy = exact_test::At(*engine, tokens_, kTokens - 64);
  copy.sealed = engine->Clone(*snapshot.sealed);
  Audit(*engine, snapshot);
  const Answers answers = AskAll(*engine, copy);
  EXPECT_EQ(std::count(answers.calibrated.begin(), answers.calibrated.end(), 0), 0);
  const Answers other = AskAll(*engine, exact_test::At(*engine, tokens_, kTokens - 64));
  EXPECT_GT(std::count(other.calibrated.begin(), other.calibrated.end(), 0), 0);
  EXPECT_TRUE(answers.SameAnswers(other));
}

}  // namespace
}  // namespace attnd::engine::kde_test
