// Accounts of requests, bytes and state: what is refused takes nothing, what ends gives back.
#include "server/admission.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/error.h"

namespace attnd::server {
namespace {

TEST(Admission, CountsRequestsAndBytesUntilTheTicketsEnd) {
  Admission admission(10, 1000);
  {
    auto a = admission.Admit(300);
    auto b = admission.Admit(400);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_EQ(admission.requests(), 2);
    EXPECT_EQ(admission.bytes(), 700);
    Admission::Ticket moved = *std::move(a);
    EXPECT_EQ(admission.bytes(), 700);
    // A ticket that is overwritten is given back.
    moved = *std::move(b);
    EXPECT_LE(admission.bytes(), 700);
  }
  EXPECT_EQ(admission.requests(), 0);
  EXPECT_EQ(admission.bytes(), 0);
}

TEST(Admission, ARefusalTakesNothingAndNamesItsReason) {
  Admission admission(2, 1000);
  auto a = admission.Admit(600);
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(ReasonOf(admission.Admit(401).status()), v1::INFLIGHT_BYTES);
  EXPECT_EQ(admission.requests(), 1);
  EXPECT_EQ(admission.bytes(), 600);
  auto b = admission.Admit(400);
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(ReasonOf(admission.Admit(0).status()), v1::QUEUE_FULL);
  EXPECT_EQ(admission.requests(), 2);
}

TEST(Admission, OneRequestLargerThanTheLimitPassesAlone) {
  Admission admission(2, 1000);
  {
    auto large = admission.Admit(5000);
    ASSERT_TRUE(large.ok());
    EXPECT_FALSE(admission.Admit(1).ok());
  }
  auto small = admission.Admit(1);
  EXPECT_FALSE(admission.Admit(5000).ok());
}

TEST(Admission, StaysWithinItsLimitsAndComesBackToZeroUnderContention) {
  Admission admission(5, 1 << 20);
  std::atomic<std::int64_t> inside{0};
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        auto ticket = admission.Admit(100);
        if (!ticket.ok()) continue;
        if (++inside > 5) exceeded = true;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(admission.requests(), 0);
  EXPECT_EQ(admission.bytes(), 0);
}

TEST(StateBudget, ReservesUpToItsLimit) {
  StateBudget budget(1000);
  EXPECT_TRUE(budget.Reserve(1000).ok());
  EXPECT_EQ(ReasonOf(budget.Reserve(1)), v1::STATE_BYTES);
  EXPECT_EQ(budget.used(), 1000);
  budget.Adjust(-400);
  EXPECT_TRUE(budget.Reserve(400).ok());
  EXPECT_TRUE(budget.Reserve(0).ok());
  budget.Adjust(-1000);
  EXPECT_EQ(budget.used(), 0);
}

}  // namespace
}  // namespace attnd::server
