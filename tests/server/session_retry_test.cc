// What a session makes of messages that do not stand at its current positions.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "server/error.h"
#include "server/session.h"
#include "tests/server/session_fixture.h"

namespace attnd::server {
namespace {

using engine::MessageKind;

class SessionRetry : public SessionFixture {
 protected:
  static std::shared_ptr<const v1::StepResponse> AnswerAt(std::int64_t position) {
    auto answer = std::make_shared<v1::StepResponse>();
    answer->set_position(position);
    return answer;
  }
  // The ErrorInfo's metadata, "key=value" in order of the keys.
  static std::string Metadata(const absl::Status& status) {
    google::rpc::ErrorInfo info;
    const google::rpc::Status rpc = ToRpcStatus(status);
    if (rpc.details().empty() || !rpc.details(0).UnpackTo(&info)) return "none";
    std::string text;
    for (const std::string key : {"layer", "position"}) {
      if (info.metadata().contains(key)) text += key + "=" + info.metadata().at(key) + " ";
    }
    return text;
  }
};

TEST_F(SessionRetry, ARememberedMessageIsARetry) {
  const auto session = MakeSession();
  std::vector<engine::Message> messages;
  for (std::uint64_t i = 0; i < 5; ++i) messages.push_back(Publish(*session, 0, 3, i));
  for (const engine::Message& message : messages) {
    EXPECT_TRUE(session->ClassifyRetry(message).ok());
  }
}

TEST_F(SessionRetry, OtherContentInTheSamePlaceIsAMismatch) {
  const auto session = MakeSession();
  Publish(*session, 0, 3, 1);
  Publish(*session, 0, 4, 2);
  const std::vector<engine::Message> others = {
      MessageOf(MessageKind::kAppend, {0, 3, 4}, 99),  // content
      MessageOf(MessageKind::kAppend, {0, 3, 5}, 2),   // count
      MessageOf(MessageKind::kStep, {0, 3, 4}, 2),     // kind
  };
  for (const engine::Message& other : others) {
    const absl::Status status = session->ClassifyRetry(other);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_EQ(ReasonOf(status), v1::REPLAY_MISMATCH);
    EXPECT_EQ(Metadata(status), "layer=0 position=7 ") << "where the layer stands now";
  }
}

TEST_F(SessionRetry, WhereNothingBeganIsTheWrongPosition) {
  const auto session = MakeSession();
  Publish(*session, 0, 3, 1);
  Publish(*session, 0, 4, 2);
  for (const std::int64_t position : {1, 2, 4, 6, 8, 1000}) {
    const absl::Status status =
        session->ClassifyRetry(MessageOf(MessageKind::kAppend, {0, position, 4}, 2));
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << position;
    EXPECT_EQ(ReasonOf(status), v1::WRONG_POSITION) << position;
    EXPECT_EQ(Metadata(status), "layer=0 position=7 ");
    EXPECT_EQ(status.message(), "position is " + std::to_string(position) + "; layer 0 is at 7");
  }
  // The same place of another layer.
  EXPECT_EQ(ReasonOf(session->ClassifyRetry(MessageOf(MessageKind::kAppend, {1, 3, 4}, 2))),
            v1::WRONG_POSITION);
}

TEST_F(SessionRetry, OfSeveralLayersTheOneThatIsOffIsNamed) {
  const auto session = MakeSession();
  Publish(*session, 0, 3, 1);
  engine::Message message;
  message.spans = {{0, 3, 2}, {1, 9, 2}};
  absl::Status status = session->ClassifyRetry(message);
  EXPECT_EQ(ReasonOf(status), v1::WRONG_POSITION);
  EXPECT_EQ(Metadata(status), "layer=1 position=0 ");
  // One layer of what was accepted as a whole is not a retry of it.
  message.spans = {{0, 3, 2}, {1, 0, 2}};
  message.digest = {5, 5};
  ASSERT_TRUE(
      session->Publish({{0, Grown(*session, 0, 2)}, {1, Grown(*session, 1, 2)}}, message, nullptr)
          .ok());
  EXPECT_TRUE(session->ClassifyRetry(message).ok());
  message.spans.pop_back();
  EXPECT_EQ(ReasonOf(session->ClassifyRetry(message)), v1::REPLAY_MISMATCH);
}

TEST_F(SessionRetry, TheOldestMessagesAreForgotten) {
  const auto session = MakeSession();
  const engine::Message first = Publish(*session, 0, 1, 0);
  const engine::Message second = Publish(*session, 0, 1, 1);
  for (std::int64_t i = 2; i < Session::kRememberedMessages; ++i) {
    Publish(*session, 0, 1, static_cast<std::uint64_t>(i));
  }
  EXPECT_TRUE(session->ClassifyRetry(first).ok()) << "the last one that is remembered";
  Publish(*session, 0, 1, 1000);
  EXPECT_EQ(ReasonOf(session->ClassifyRetry(first)), v1::WRONG_POSITION);
  EXPECT_TRUE(session->ClassifyRetry(second).ok());
}

TEST_F(SessionRetry, AStepIsReplayedUntilItsLayerChanges) {
  const auto session = MakeSession();
  const engine::Message step = Publish(*session, 0, 2, 1, AnswerAt(2));
  auto replayed = session->ReplayStep(step);
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ((*replayed)->position(), 2);
  // Other layers may change.
  Publish(*session, 1, 5, 2);
  const engine::Message other = Publish(*session, 2, 1, 3, AnswerAt(1));
  ASSERT_TRUE(session->ReplayStep(step).ok());
  EXPECT_EQ((*session->ReplayStep(other))->position(), 1);
  Publish(*session, 0, 1, 4);
  ASSERT_TRUE(session->ClassifyRetry(step).ok()) << "it is known still";
  const absl::Status expired = session->ReplayStep(step).status();
  EXPECT_EQ(expired.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(expired), v1::STEP_REPLAY_EXPIRED);
  EXPECT_EQ(expired.message(),
            "layer 0 was changed after the Step at position 0; its answer is gone");
  EXPECT_TRUE(session->ReplayStep(other).ok());
}

TEST_F(SessionRetry, OfTwoStepsTheLaterOneIsKept) {
  const auto session = MakeSession();
  const engine::Message one = Publish(*session, 0, 2, 1, AnswerAt(2));
  const engine::Message two = Publish(*session, 0, 3, 2, AnswerAt(5));
  EXPECT_EQ(ReasonOf(session->ReplayStep(one).status()), v1::STEP_REPLAY_EXPIRED);
  ASSERT_TRUE(session->ReplayStep(two).ok());
  EXPECT_EQ((*session->ReplayStep(two))->position(), 5);
}

TEST_F(SessionRetry, AnAppendHasNoAnswerToReplay) {
  const auto session = MakeSession();
  const engine::Message append = Publish(*session, 0, 2, 1);
  EXPECT_EQ(ReasonOf(session->ReplayStep(append).status()), v1::STEP_REPLAY_EXPIRED);
}

}  // namespace
}  // namespace attnd::server
