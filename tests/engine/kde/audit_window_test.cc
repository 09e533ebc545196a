// Windows of audits, the records that hold them, and which rows are audited.
#include "engine/kde/index/audit_window.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "engine/kde/index/audit_record.h"
#include "engine/kde/index/plan_audits.h"
#include "engine/kde/index/row_audit.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

TEST(AuditWindowTest, RanksAreThoseOfTheFormula) {
  EXPECT_EQ(ConformalRank(1), 1);
  EXPECT_EQ(ConformalRank(20), 20);
  EXPECT_EQ(ConformalRank(200), 195);  // 201 (0.95 + 1.28 sqrt(0.0475 / 200)) = 194.9
  EXPECT_EQ(ConformalRank(256), 249);  // 257 (0.95 + 1.28 sqrt(0.0475 / 256)) = 248.6
  for (std::int64_t m = 1; m < 300; ++m) {
    EXPECT_LE(ConformalRank(m), m);
    if (m > 40) {
      EXPECT_GE(ConformalRank(m), std::ceil(0.95 * static_cast<double>(m + 1))) << m;
    }
  }
}

TEST(AuditWindowTest, TheFactorIsTheRatioOfThatRank) {
  AuditWindow window;
  for (std::int64_t i = 1; i < AuditWindow::kFewest; ++i) {
    window.Add(7.0F);
    EXPECT_FALSE(window.learned());
    EXPECT_EQ(window.factor(), 1.0F);
  }
  window.Add(7.0F);
  EXPECT_TRUE(window.learned());
  EXPECT_EQ(window.factor(), 7.0F);
  // 1 to 200, out of order.
  window = {};
  for (int i = 0; i < 200; ++i) {
    EXPECT_FALSE(window.calibrated());
    window.Add(static_cast<float>(1 + i * 77 % 200));
  }
  EXPECT_TRUE(window.calibrated());
  EXPECT_EQ(window.factor(), 195.0F);
}

TEST(AuditWindowTest, TheOldestLeave) {
  AuditWindow window;
  for (int i = 0; i < 100; ++i) window.Add(1000.0F);
  for (std::int64_t i = 0; i < AuditWindow::kAudits - 9; ++i) window.Add(1.0F);
  EXPECT_EQ(window.audits(), AuditWindow::kAudits);
  EXPECT_EQ(window.factor(), 1000.0F);  // nine are left, and rank 249 of 256 is the eighth largest
  window.Add(1.0F);
  EXPECT_EQ(window.factor(), 1000.0F);
  window.Add(1.0F);
  EXPECT_EQ(window.factor(), 1.0F);
}

// What the choice of the rank is for: of windows of ratios drawn from one distribution, at least
// nine in ten cover 95 % of it. The ratios are uniform, so that a factor is what it covers.
TEST(AuditWindowTest, NineWindowsInTenCover95Percent) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform;
  for (const std::int64_t audits : {AuditWindow::kEnough, AuditWindow::kAudits}) {
    double mean = 0.0;
    int enough = 0;
    for (int draw = 0; draw < 1000; ++draw) {
      AuditWindow window;
      for (std::int64_t i = 0; i < audits; ++i) window.Add(uniform(random));
      mean += static_cast<double>(window.factor()) / 1000.0;
      enough += window.factor() >= 0.95F ? 1 : 0;
    }
    EXPECT_GT(enough, 880);
    EXPECT_LT(enough, 980);
    EXPECT_LT(mean, 0.975);
  }
}

AuditedFactor ReadOne(AuditRecord& record, const AuditKind& kind, std::size_t head) {
  std::vector<AuditedFactor> factors;
  record.Read(kind, factors);
  return factors.at(head);
}

TEST(AuditRecordTest, HeadsAndKindsLearnApart) {
  AuditRecord record(2);
  EXPECT_FALSE(ReadOne(record, {3, true}, 1).learned);
  EXPECT_FALSE(ReadOne(record, {3, false}, 1).learned);
  for (int i = 0; i < 200; ++i) record.Add({3, true}, 1, 2.0F);
  record.Add({4, true}, 1, 2.0F);  // was never asked
  EXPECT_TRUE(ReadOne(record, {3, true}, 1).calibrated);
  EXPECT_EQ(ReadOne(record, {3, true}, 1).factor, 2.0F);
  EXPECT_FALSE(ReadOne(record, {3, true}, 0).learned);
  EXPECT_FALSE(ReadOne(record, {3, false}, 1).learned);
  EXPECT_FALSE(ReadOne(record, {4, true}, 1).learned);
}

TEST(AuditRecordTest, ForgetsTheKindThatWasNotAskedForLongest) {
  AuditRecord record(1);
  for (std::int64_t kind = 0; kind < AuditRecord::kKinds; ++kind) {
    ReadOne(record, {kind, true}, 0);
    for (int i = 0; i < 200; ++i) record.Add({kind, true}, 0, 2.0F);
  }
  EXPECT_TRUE(ReadOne(record, {0, true}, 0).calibrated);
  EXPECT_FALSE(ReadOne(record, {100, true}, 0).calibrated);
  EXPECT_TRUE(ReadOne(record, {0, true}, 0).calibrated);
  EXPECT_TRUE(ReadOne(record, {2, true}, 0).calibrated);
  EXPECT_FALSE(ReadOne(record, {1, true}, 0).calibrated);
}

// For ThreadSanitizer; and nothing is lost.
TEST(AuditRecordTest, ThreadsTellAndReadAtTheSameTime) {
  AuditRecord record(2);
  ReadOne(record, {0, true}, 0);
  std::vector<std::thread> threads;
  for (std::int64_t head = 0; head < 2; ++head) {
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&record, head] {
        for (int i = 0; i < 100; ++i) {
          record.Add({0, true}, head, 3.0F);
          ReadOne(record, {i % 4, true}, 0);
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t head = 0; head < 2; ++head) {
    EXPECT_TRUE(ReadOne(record, {0, true}, head).calibrated);
    EXPECT_EQ(ReadOne(record, {0, true}, head).factor, 3.0F);
  }
}

TEST(RowAuditTest, TicketsAreSpreadAndDependOnEveryBit) {
  constexpr std::int64_t kDim = 20;
  constexpr std::int64_t kRows = 20000;
  const std::vector<float> queries = RandomValues(kRows * kDim, 5);
  int audited = 0;
  for (std::int64_t r = 0; r < kRows; ++r) {
    audited += IsAudited(AuditTicket(queries.data() + r * kDim, kDim, r), 0.1) ? 1 : 0;
  }
  EXPECT_NEAR(audited, 2000, 150);
  std::vector<float> row(queries.begin(), queries.begin() + kDim);
  const std::uint64_t ticket = AuditTicket(row.data(), kDim, 4);
  EXPECT_EQ(AuditTicket(row.data(), kDim, 4), ticket);
  EXPECT_NE(AuditTicket(row.data(), kDim, 5), ticket);
  EXPECT_NE(AuditTicket(row.data(), kDim, -1), ticket);
  for (float& component : row) {
    const float old = component;
    component = std::nextafter(component, 100.0F);
    EXPECT_NE(AuditTicket(row.data(), kDim, 4), ticket);
    component = old;
  }
}

TEST(RowAuditTest, ChancesFollowTheWork) {
  EXPECT_DOUBLE_EQ(AuditChance(10.0, 100.0, 0.02), 0.002);
  EXPECT_DOUBLE_EQ(AuditChance(1000.0, 100.0, 0.25), 0.25);
  EXPECT_EQ(AuditChance(10.0, 100.0, 0.0), 0.0);
  EXPECT_EQ(AuditChance(10.0, 0.0, 0.25), 0.0);
}

TEST(RowAuditTest, TilesWithFewAuditsTakeTurns) {
  EXPECT_EQ(TileChance(0.01, 1), 1.0);
  EXPECT_EQ(TileChance(0.0, 768), 1.0);
  EXPECT_DOUBLE_EQ(TileChance(0.005, 768), 0.005 * 768 / 12);
  EXPECT_DOUBLE_EQ(TileChance(0.005, 16), 0.02);
  EXPECT_EQ(TileChance(0.02, 768), 1.0);
  for (const std::int64_t rows : {1, 5, 16, 64, 768}) {
    for (const double chance : {0.001, 0.01, 0.25}) {
      EXPECT_LE(chance / TileChance(chance, rows), 0.25 + 1e-12) << rows;
    }
  }
}

TEST(RowAuditTest, StatedErrorsRestOnWhatIsLearned) {
  EXPECT_NEAR(RowDeviation(0.04, 0.01), 0.02, 1e-6);
  // Nothing is learned: no less than the predicted deviation, nor than the mean.
  EXPECT_DOUBLE_EQ(StatedError(0.04, 0.01, {}), 0.04);
  EXPECT_NEAR(StatedError(0.01, 0.04, {}), 0.02, 1e-6);
  EXPECT_NEAR(StatedError(0.04, 0.01, {.factor = 0.5F, .learned = true}), 0.01, 1e-6);
}

// By the definition: the answer with what was predicted, and with what is true.
TEST(RowAuditTest, ErrorsAreThoseOfTheAnswer) {
  constexpr std::int64_t kColumns = 16;
  constexpr std::int64_t kValueDim = 13;
  std::vector<float> memory(3 * Size(SoftmaxSums::RowFloats(kColumns)));
  const auto sums = [&](std::size_t i) {
    return SoftmaxSums(memory.data() + i * Size(SoftmaxSums::RowFloats(kColumns)), 1, kColumns);
  };
  SoftmaxSums answer = sums(0);
  SoftmaxSums predicted = sums(1);
  SoftmaxSums truth = sums(2);
  const std::vector<float> values = RandomValues(3 * kColumns, 8);
  predicted.max[0] = 2.0F;
  predicted.sum[0] = 3.0F;
  truth.max[0] = 3.5F;
  truth.sum[0] = 0.7F;
  answer.max[0] = 4.0F;
  const double read_sum = 5.0;
  answer.sum[0] = static_cast<float>(read_sum + 3.0 * std::exp(-2.0));
  double square = 0.0;
  const double true_sum = read_sum + 0.7 * std::exp(-0.5);
  for (std::int64_t c = 0; c < kColumns; ++c) {
    const auto read = static_cast<double>(values[Size(c)]);
    predicted.acc[c] = values[Size(kColumns + c)];
    truth.acc[c] = values[Size(2 * kColumns + c)];
    answer.acc[c] =
        static_cast<float>(read + std::exp(-2.0) * static_cast<double>(predicted.acc[c]));
    const double right = (read + std::exp(-0.5) * static_cast<double>(truth.acc[c])) / true_sum;
    const double off =
        static_cast<double>(answer.acc[c]) / static_cast<double>(answer.sum[0]) - right;
    if (c < kValueDim) square += off * off;
  }
  EXPECT_NEAR(AuditedError(answer, 0, predicted, truth, 0, kValueDim), std::sqrt(square), 1e-6);
  answer.sum[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(AuditedError(answer, 0, predicted, truth, 0, kValueDim)));
}

TEST(PlanAuditsTest, TheSmallestTicketsStayInTheOrderOfRows) {
  PlanAudits audits(BlockLayout({1, 1, 8, 8, 1.0F}));
  audits.Reset(2, 3, 1);
  const std::vector<std::uint64_t> tickets = {50, 10, 70, 20, 60, 30, 40};
  for (std::size_t row = 0; row < tickets.size(); ++row) {
    audits.Offer(1, static_cast<std::int64_t>(row), tickets[row]);
  }
  audits.Choose(1);
  EXPECT_EQ(audits.count(0), 0);
  ASSERT_EQ(audits.count(1), 3);
  EXPECT_EQ(audits.row(1, 0), 1);
  EXPECT_EQ(audits.row(1, 1), 3);
  EXPECT_EQ(audits.row(1, 2), 5);
  AuditRecord record(1);
  ReadOne(record, {0, true}, 0);
  for (int i = 0; i < 7; ++i) {
    audits.SetRatio(1, 0, 2.0);
    audits.SetRatio(1, 1, std::numeric_limits<double>::infinity());
    audits.SetRatio(1, 2, 1.0);
    audits.Tell(0, 2, {0, true}, 0, record);
  }
  EXPECT_FALSE(ReadOne(record, {0, true}, 0).learned);  // 14 ratios
  for (int i = 0; i < 3; ++i) audits.Tell(0, 2, {0, true}, 0, record);
  EXPECT_TRUE(ReadOne(record, {0, true}, 0).learned);
  // Without room nothing is kept.
  audits.Reset(1, 0, 1);
  audits.Offer(0, 0, 1);
  audits.Choose(0);
  EXPECT_EQ(audits.count(0), 0);
}

}  // namespace
}  // namespace attnd::engine
