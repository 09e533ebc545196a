// What a message that does not stand at the current positions is.
#include "engine/message_log.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

using Verdict = MessageLog::Verdict;

Message Of(std::vector<TokenSpan> spans, std::uint64_t digest,
           MessageKind kind = MessageKind::kAppend) {
  return {kind, std::move(spans), {digest, 1}};
}

TEST(MessageLog, AnEmptyOneKnowsNothing) {
  const MessageLog log(4);
  EXPECT_EQ(log.Classify(Of({{0, 0, 5}}, 1)), Verdict::kWrongPosition);
  EXPECT_EQ(log.bytes(), 0);
}

TEST(MessageLog, EqualIsARetryAndAnythingElseThereIsAMismatch) {
  MessageLog log(4);
  log.Remember(Of({{0, 0, 5}, {1, 7, 5}}, 1));
  EXPECT_EQ(log.Classify(Of({{0, 0, 5}, {1, 7, 5}}, 1)), Verdict::kReplay);
  EXPECT_EQ(log.Classify(Of({{0, 0, 5}, {1, 7, 5}}, 2)), Verdict::kMismatch);
  EXPECT_EQ(log.Classify(Of({{0, 0, 4}, {1, 7, 5}}, 1)), Verdict::kMismatch);
  EXPECT_EQ(log.Classify(Of({{0, 0, 5}}, 1)), Verdict::kMismatch);
  EXPECT_EQ(log.Classify(Of({{0, 0, 5}, {1, 7, 5}}, 1, MessageKind::kStep)), Verdict::kMismatch);
  EXPECT_EQ(log.Classify(Of({{1, 7, 1}}, 1)), Verdict::kMismatch);
}

TEST(MessageLog, InsideAMessageOrBesideItIsNoPlaceOfItsOwn) {
  MessageLog log(4);
  log.Remember(Of({{0, 10, 5}}, 1));
  EXPECT_EQ(log.Classify(Of({{0, 12, 5}}, 1)), Verdict::kWrongPosition);
  EXPECT_EQ(log.Classify(Of({{0, 15, 5}}, 1)), Verdict::kWrongPosition);
  EXPECT_EQ(log.Classify(Of({{1, 10, 5}}, 1)), Verdict::kWrongPosition) << "another layer";
}

TEST(MessageLog, ForgetsTheOldestBeyondItsCapacity) {
  MessageLog log(3);
  for (std::int64_t i = 0; i < 5; ++i) log.Remember(Of({{0, i, 1}}, 1));
  EXPECT_EQ(log.Classify(Of({{0, 1, 1}}, 1)), Verdict::kWrongPosition);
  for (std::int64_t i = 2; i < 5; ++i) {
    EXPECT_EQ(log.Classify(Of({{0, i, 1}}, 1)), Verdict::kReplay) << i;
  }
  const std::int64_t bytes = log.bytes();
  log.Remember(Of({{0, 5, 1}}, 1));
  EXPECT_EQ(log.bytes(), bytes) << "a full log does not grow";
}

}  // namespace
}  // namespace attnd::engine
