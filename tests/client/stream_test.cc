#include "client/stream.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/client/fake_error.h"
#include "tests/client/session_fixture.h"

namespace attnd::client {
namespace {

class StreamCalls : public SessionFixture {
 protected:
  void Open(StreamOptions options = {}) {
    if (session_ == nullptr) {
      ASSERT_NO_FATAL_FAILURE(CreateSession(2));
    }
    auto stream = session_->OpenStream(options);
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  std::unique_ptr<Stream> stream_;
};

TEST_F(StreamCalls, AnswersInOrderAndSeesEarlierMessages) {
  Open();
  std::vector<Stream::Future<AppendResult>> appends;
  std::vector<Stream::Future<AttendResult>> attends;
  for (std::int64_t i = 0; i < 100; ++i) {
    const TestTokens piece(i * 3, 3);
    appends.push_back(stream_->Append(piece.tokens()));
    attends.push_back(stream_->Attend(0, piece.query_tensor()));
  }
  for (std::int64_t i = 0; i < 100; ++i) {
    const auto append = appends[static_cast<std::size_t>(i)].get();
    ASSERT_TRUE(append.ok()) << append.status();
    EXPECT_EQ(append->positions, (std::vector<std::int64_t>{3 * i + 3}));
    const auto attend = attends[static_cast<std::size_t>(i)].get();
    ASSERT_TRUE(attend.ok()) << attend.status();
    EXPECT_EQ(attend->position, 3 * i + 3);
  }
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_EQ(session_->position(0), 300);

  const TestTokens all(0, 300);
  const auto fresh = client_->CreateSession(Config(2));
  ASSERT_TRUE((*fresh)->Append(all.tokens()).ok());
  EXPECT_EQ((*fresh)->Attend(0, all.query_tensor())->answer.SerializeAsString(),
            session_->Attend(0, all.query_tensor())->answer.SerializeAsString());
}

TEST_F(StreamCalls, ASendBlocksWhenTheWindowIsFull) {
  server_.SetStreamGate(false);
  StreamOptions options;
  options.max_unanswered = 4;
  options.send.timeout = absl::Milliseconds(100);
  Open(options);
  const TestTokens data(0, 1);
  std::atomic<int> answered = 0;
  const auto count = [&](const absl::StatusOr<AttendResult>& result) { answered += result.ok(); };
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(stream_->Attend(0, data.query_tensor(), {}, count).ok());
  }
  const absl::Status full = stream_->Attend(0, data.query_tensor(), {}, count);
  EXPECT_EQ(full.code(), absl::StatusCode::kDeadlineExceeded) << full;
  EXPECT_EQ(full.message(),
            "the stream's window stayed full: stream: last answered message 0, 4 unanswered");
  EXPECT_EQ(answered, 0);
  server_.SetStreamGate(true);
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_EQ(answered, 4);
}

TEST_F(StreamCalls, BytesFillTheWindowToo) {
  server_.SetStreamGate(false);
  StreamOptions options;
  options.max_unanswered_bytes = 50'000;
  options.send.timeout = absl::Milliseconds(100);
  Open(options);
  const TestTokens data(0, 1000);  // 28,000 bytes
  auto first = stream_->Append(data.tokens());
  auto second = stream_->Append(data.tokens());
  EXPECT_EQ(second.get().status().code(), absl::StatusCode::kDeadlineExceeded);
  server_.SetStreamGate(true);
  EXPECT_TRUE(first.get().ok());
  // What was not sent has left no trace.
  EXPECT_TRUE(stream_->Append(data.tokens()).get().ok());
  EXPECT_EQ(session_->position(0), 2000);
}

TEST_F(StreamCalls, AMessageLargerThanTheWindowGoesAlone) {
  StreamOptions options;
  options.max_unanswered_bytes = 100;
  Open(options);
  const TestTokens data(0, 1000);
  EXPECT_TRUE(stream_->Append(data.tokens()).get().ok());
}

TEST_F(StreamCalls, AMessageOverTheServersLimitIsRefusedWithWhatFits) {
  Open();
  const TestTokens data(0, 400'000);  // 11.2 MB
  const auto refused = stream_->Append(data.tokens()).get().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "keys: 400000 rows do not fit one message of the stream; send at most 299442, or use "
            "the unary call");
  EXPECT_TRUE(stream_->Append(TestTokens(0, 299'442).tokens()).get().ok());
}

TEST_F(StreamCalls, AStepIsAnsweredBeforeTheNextMutationIsSent) {
  server_.SetStreamGate(false);
  StreamOptions options;
  options.send.timeout = absl::Milliseconds(100);
  Open(options);
  const TestTokens data(0, 2);
  StepOptions asked;
  asked.answer.set_estimates(true);
  asked.accuracy.emplace().set_target_error(0.5);
  auto step = stream_->Step(data.tokens(), data.query_tensor(), asked);
  EXPECT_EQ(stream_->Append(data.tokens()).get().status().code(),
            absl::StatusCode::kDeadlineExceeded);
  auto other_layer = stream_->Append(data.tokens(1));
  auto attend = stream_->Attend(0, data.query_tensor());
  server_.SetStreamGate(true);
  const auto stepped = step.get();
  ASSERT_TRUE(stepped.ok()) << stepped.status();
  EXPECT_EQ(ToFloats(stepped->answer.estimates().errors()).value(), (std::vector<float>{0.5, 0.5}));
  EXPECT_TRUE(other_layer.get().ok());
  EXPECT_EQ(attend.get()->position, 2);
  EXPECT_TRUE(stream_->Append(data.tokens()).get().ok());
  EXPECT_EQ(session_->position(0), 4);
}

TEST_F(StreamCalls, AfterAFailedMessageNoLaterTokenTakesItsPlace) {
  server_.SetStreamGate(false);
  Open();
  server_.FailNext(
      {grpc::Status::OK, FakeError(grpc::StatusCode::INVALID_ARGUMENT, "NOT_FINITE", "keys: NaN")});
  auto first = stream_->Append(TestTokens(0, 2).tokens());
  auto failed = stream_->Append(TestTokens(2, 2).tokens());
  auto pipelined = stream_->Append(TestTokens(4, 2).tokens());
  auto other_layer = stream_->Append(TestTokens(0, 2).tokens(1));
  server_.SetStreamGate(true);
  EXPECT_TRUE(first.get().ok());
  EXPECT_EQ(ErrorReasonOf(failed.get().status()), "NOT_FINITE");
  EXPECT_EQ(ErrorReasonOf(pipelined.get().status()), "WRONG_POSITION");
  EXPECT_TRUE(other_layer.get().ok());
  EXPECT_EQ(stream_->Append(TestTokens(6, 2).tokens()).get().status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(stream_->Append(TestTokens(2, 2).tokens(1)).get().ok());
  EXPECT_EQ(session_->position(0), 2);

  ASSERT_TRUE(stream_->Resume(0).ok());
  EXPECT_TRUE(stream_->Append(TestTokens(2, 2).tokens()).get().ok());
  EXPECT_EQ(server_.PositionOf(session_->id(), 0), 4);
  EXPECT_FALSE(stream_->Resume(9).ok());
}

TEST_F(StreamCalls, ABrokenStreamSaysWhereItStoodAndTheRestCanBeSentAgain) {
  server_.EndStreamsAfter(2, FakeError(grpc::StatusCode::UNAVAILABLE, "SHUTTING_DOWN",
                                       "the server is shutting down", {{"answered", "2"}}));
  Open();
  std::vector<Stream::Future<AppendResult>> appends;
  for (std::int64_t i = 0; i < 4; ++i) {
    appends.push_back(stream_->Append(TestTokens(i, 1).tokens()));
  }
  EXPECT_TRUE(appends[0].get().ok());
  EXPECT_TRUE(appends[1].get().ok());
  for (const std::size_t i : {2U, 3U}) {
    EXPECT_EQ(appends[i].get().status().code(), absl::StatusCode::kUnavailable) << i;
  }
  const absl::Status end = stream_->Finish();
  EXPECT_EQ(ErrorReasonOf(end), "SHUTTING_DOWN");
  EXPECT_EQ(ErrorMetadataOf(end).at("answered"), "2");
  EXPECT_NE(end.message().find("last answered message 2"), std::string::npos) << end;
  EXPECT_FALSE(stream_->Append(TestTokens(9, 1).tokens()).get().ok());

  // The third message was applied and its answer lost; sent again it is not counted twice.
  EXPECT_EQ(server_.PositionOf(session_->id()), 3);
  EXPECT_EQ(session_->position(), 2);
  for (std::int64_t i = 2; i < 4; ++i) {
    ASSERT_TRUE(session_->Append(TestTokens(i, 1).tokens()).ok());
  }
  EXPECT_EQ(server_.PositionOf(session_->id()), 4);
  EXPECT_EQ(server_.seen().replayed_messages, 1);
}

TEST_F(StreamCalls, CancelFailsWhatIsUnanswered) {
  server_.SetStreamGate(false);
  Open();
  auto attend = stream_->Attend(0, TestTokens(0, 1).query_tensor());
  stream_->Cancel();
  EXPECT_EQ(attend.get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(stream_->Finish().code(), absl::StatusCode::kCancelled);
  server_.SetStreamGate(true);
}

TEST_F(StreamCalls, DestroyingAStreamSettlesItsMessages) {
  server_.SetStreamGate(false);
  Open();
  auto append = stream_->Append(TestTokens(0, 1).tokens());
  stream_.reset();
  EXPECT_FALSE(append.get().ok());
  server_.SetStreamGate(true);
  // The layer is free for other writers.
  EXPECT_TRUE(session_->Append(TestTokens(0, 1).tokens(1)).ok());
}

TEST_F(StreamCalls, ACallbackMustNotSend) {
  Open();
  const TestTokens data(0, 1);
  std::promise<absl::Status> sent;
  std::promise<absl::Status> finished;
  ASSERT_TRUE(stream_
                  ->Attend(0, data.query_tensor(), {},
                           [&](const absl::StatusOr<AttendResult>&) {
                             sent.set_value(
                                 stream_->Attend(0, data.query_tensor(), {}, [](const auto&) {}));
                             finished.set_value(stream_->Finish());
                           })
                  .ok());
  EXPECT_EQ(sent.get_future().get().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(finished.get_future().get().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(StreamCalls, StreamAndUnaryCallsShareALayer) {
  Open();
  std::atomic<int> failures = 0;
  std::thread unary([&] {
    for (int i = 0; i < 50; ++i) failures += !session_->Append(TestTokens(i, 2).tokens()).ok();
  });
  std::vector<Stream::Future<AppendResult>> appends;
  for (int i = 0; i < 50; ++i) appends.push_back(stream_->Append(TestTokens(i, 2).tokens()));
  for (auto& append : appends) failures += !append.get().ok();
  unary.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(server_.PositionOf(session_->id()), 200);
}

TEST_F(StreamCalls, AWindowSmallerThanOneMessageIsRefused) {
  CreateSession();
  StreamOptions options;
  options.max_unanswered = 0;
  EXPECT_FALSE(session_->OpenStream(options).ok());
}

TEST_F(StreamCalls, ACallbackThatResumedWaitedForItself) {
  StreamOptions options;
  options.send.timeout = absl::Milliseconds(200);
  Open(options);
  std::promise<absl::Status> resumed;
  ASSERT_TRUE(stream_
                  ->Attend(0, TestTokens(0, 1).query_tensor(), {},
                           [&](const auto&) { resumed.set_value(stream_->Resume(0)); })
                  .ok());
  EXPECT_EQ(resumed.get_future().get().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(StreamCalls, AnAnswerToNothingWasTakenForAMessage) {
  server_.BeginStreamsWithAnAnswer();
  Open();
  const absl::Status end = stream_->Finish();
  EXPECT_EQ(end.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(end.message(),
            "the server answered message 0 of the stream, expected was none (stream: last answered "
            "message 0, 0 unanswered)");
  EXPECT_FALSE(stream_->Append(TestTokens(0, 1).tokens()).get().ok());
}

TEST_F(StreamCalls, AMessageThatWasNeverSentShiftedTheNextOnes) {
  server_.SetStreamGate(false);
  StreamOptions options;
  options.send.timeout = absl::Milliseconds(100);
  Open(options);
  const TestTokens first(0, 2);
  const TestTokens second(2, 3);
  auto earlier = stream_->Append(first.tokens(0));
  auto step = stream_->Step(first.tokens(1), first.query_tensor());
  // Layer 0 is begun, layer 1 waits for its Step in vain.
  const std::vector<LayerTokens> both = {second.tokens(0), second.tokens(1)};
  EXPECT_EQ(stream_->Append(both, [](const auto&) {}).code(), absl::StatusCode::kDeadlineExceeded);
  auto later = stream_->Append(second.tokens(0));
  server_.SetStreamGate(true);
  EXPECT_TRUE(earlier.get().ok());
  EXPECT_TRUE(step.get().ok());
  const auto appended = later.get();
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_EQ(appended->positions, (std::vector<std::int64_t>{5}));
}

}  // namespace
}  // namespace attnd::client
