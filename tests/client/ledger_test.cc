#include "client/ledger.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace attnd::client {
namespace {

const int kFirst = 0;
const int kSecond = 0;

Ledger::Deadline Soon() { return std::chrono::steady_clock::now() + std::chrono::milliseconds(20); }
Ledger::Deadline Later() { return std::chrono::steady_clock::now() + std::chrono::seconds(20); }

TEST(Ledger, PipelinedMessagesGetConsecutivePositions) {
  Ledger ledger({10});
  EXPECT_EQ(*ledger.BeginMessage(0, &kFirst, 3, false, Soon()), 10);
  EXPECT_EQ(*ledger.BeginMessage(0, &kFirst, 4, false, Soon()), 13);
  EXPECT_EQ(ledger.Acknowledged(0), 10);
  ledger.EndMessage(0, 13);
  EXPECT_EQ(ledger.Acknowledged(0), 13);
  ledger.EndMessage(0, 17);
  EXPECT_EQ(*ledger.BeginMessage(0, &kSecond, 1, false, Soon()), 17);
}

TEST(Ledger, WhatIsDurableNeverFalls) {
  Ledger ledger({10, 20}, {5});
  EXPECT_EQ(ledger.Durable(0), 5);
  EXPECT_EQ(ledger.Durable(1), 0);
  ledger.RaiseDurable(0, 10);
  ledger.RaiseDurable(0, 7);
  EXPECT_EQ(ledger.Durable(0), 10);
  EXPECT_EQ(ledger.Acknowledged(0), 10);
}

TEST(Ledger, NoMutationWhileAStepIsUnanswered) {
  Ledger ledger({0, 0});
  ASSERT_TRUE(ledger.BeginMessage(0, &kFirst, 1, true, Soon()).ok());
  EXPECT_EQ(ledger.BeginMessage(0, &kFirst, 1, false, Soon()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(ledger.BeginMessage(1, &kFirst, 1, false, Soon()).ok());
  std::thread answer([&] { ledger.EndMessage(0, 1); });
  EXPECT_EQ(*ledger.BeginMessage(0, &kFirst, 1, false, Later()), 1);
  answer.join();
}

TEST(Ledger, AStepAfterUnansweredAppendsIsStillGuarded) {
  Ledger ledger({0});
  ASSERT_TRUE(ledger.BeginMessage(0, &kFirst, 1, false, Soon()).ok());
  ASSERT_TRUE(ledger.BeginMessage(0, &kFirst, 1, true, Soon()).ok());
  ledger.EndMessage(0, 1);  // the Append's answer
  EXPECT_FALSE(ledger.BeginMessage(0, &kFirst, 1, false, Soon()).ok());
  ledger.EndMessage(0, 2);
  EXPECT_TRUE(ledger.BeginMessage(0, &kFirst, 1, false, Soon()).ok());
}

TEST(Ledger, WhatFailedIsNotCounted) {
  Ledger ledger({5});
  ASSERT_TRUE(ledger.BeginMessage(0, &kFirst, 3, false, Soon()).ok());
  ASSERT_TRUE(ledger.BeginMessage(0, &kFirst, 3, false, Soon()).ok());
  ledger.EndMessage(0, std::nullopt);
  // The second one is still on its way: a third must not take the place of the first.
  EXPECT_EQ(*ledger.BeginMessage(0, &kFirst, 1, false, Soon()), 11);
  ledger.EndMessage(0, std::nullopt);
  ledger.EndMessage(0, std::nullopt);
  EXPECT_EQ(*ledger.BeginMessage(0, &kFirst, 1, false, Soon()), 5);
}

TEST(Ledger, OneWriterPerLayer) {
  Ledger ledger({0, 0});
  const std::array<std::int64_t, 1> layer = {1};
  ASSERT_TRUE(ledger.Acquire(layer, &kFirst, Soon()).ok());
  EXPECT_FALSE(ledger.BeginMessage(1, &kSecond, 1, false, Soon()).ok());
  // A call that waits for layer 1 in vain gives layer 0 back.
  const std::array<std::int64_t, 2> both = {1, 0};
  EXPECT_FALSE(ledger.Acquire(both, &kSecond, Soon()).ok());
  EXPECT_TRUE(ledger.BeginMessage(0, &kSecond, 1, false, Soon()).ok());
  ledger.Release(layer);
  EXPECT_TRUE(ledger.BeginMessage(1, &kSecond, 1, false, Soon()).ok());
  EXPECT_FALSE(ledger.Acquire(layer, &kFirst, Soon()).ok());
  ledger.EndMessage(1, 1);
  EXPECT_TRUE(ledger.Acquire(layer, &kFirst, Soon()).ok());
}

TEST(Ledger, AMessageThatWasNeverSentLeftItsRowsBehind) {
  Ledger ledger({5});
  ASSERT_TRUE(ledger.BeginMessage(0, &kFirst, 3, false, Soon()).ok());
  ASSERT_EQ(*ledger.BeginMessage(0, &kFirst, 4, true, Soon()), 8);
  ledger.AbandonMessage(0, 4);
  EXPECT_EQ(*ledger.BeginMessage(0, &kFirst, 2, false, Soon()), 8);
  ledger.EndMessage(0, 8);
  ledger.AbandonMessage(0, 2);
  // Nothing is unanswered: the layer is free, at what was acknowledged.
  EXPECT_EQ(*ledger.BeginMessage(0, &kSecond, 1, false, Soon()), 8);
}

TEST(Ledger, AnAbandonedMessageAfterAFailedOneChangesNothingElse) {
  Ledger ledger({5});
  ASSERT_TRUE(ledger.BeginMessage(0, &kFirst, 3, false, Soon()).ok());
  ASSERT_TRUE(ledger.BeginMessage(0, &kFirst, 4, false, Soon()).ok());
  ledger.EndMessage(0, std::nullopt);
  ledger.AbandonMessage(0, 4);
  EXPECT_EQ(*ledger.BeginMessage(0, &kSecond, 1, false, Soon()), 5);
}

}  // namespace
}  // namespace attnd::client
