// What a message that does not stand at the current positions is.
#include "engine/message_log.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/byte_io.h"
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

MessageLog Saved() {
  MessageLog log(4);
  log.Remember(Of({{0, 0, 5}, {1, 7, 5}}, 1));
  log.Remember(Of({{0, 5, 3}}, 2, MessageKind::kStep));
  return log;
}

TEST(MessageLog, ALoadedOneRemembersWhatWasSaved) {
  const std::string bytes = Saved().Save();
  const absl::StatusOr<MessageLog> log = MessageLog::Load(bytes, 4);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(log->Classify(Of({{0, 0, 5}, {1, 7, 5}}, 1)), Verdict::kReplay);
  EXPECT_EQ(log->Classify(Of({{0, 5, 3}}, 2, MessageKind::kStep)), Verdict::kReplay);
  EXPECT_EQ(log->Classify(Of({{0, 5, 3}}, 2)), Verdict::kMismatch);
  EXPECT_EQ(log->Save(), bytes);
}

TEST(MessageLog, ALoadedOneOfSmallerCapacityForgetsTheOldest) {
  const absl::StatusOr<MessageLog> log = MessageLog::Load(Saved().Save(), 1);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(log->Classify(Of({{1, 7, 5}}, 1)), Verdict::kWrongPosition);
  EXPECT_EQ(log->Classify(Of({{0, 5, 3}}, 2, MessageKind::kStep)), Verdict::kReplay);
}

TEST(MessageLog, EveryFlippedBitAndEveryCutIsDataLoss) {
  const std::string bytes = Saved().Save();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    EXPECT_TRUE(absl::IsDataLoss(MessageLog::Load(bytes.substr(0, i), 4).status())) << i;
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_TRUE(absl::IsDataLoss(MessageLog::Load(damaged, 4).status())) << i << ' ' << bit;
    }
  }
}

TEST(MessageLog, CountsThatTheBytesCannotHoldAreDataLossUnderAGoodChecksum) {
  const std::int64_t counts[] = {-1, 1, std::int64_t{1} << 40, INT64_MAX};
  for (const std::int64_t count : counts) {
    ByteWriter writer;
    writer.Put(std::uint32_t{1});
    writer.Put(count);
    EXPECT_TRUE(absl::IsDataLoss(MessageLog::Load(std::move(writer).Finish(), 4).status()))
        << count;
  }
}

}  // namespace
}  // namespace attnd::engine
