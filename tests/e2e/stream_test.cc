// Stream: order, ids, a status per message, how streams end, and the bound on what is held.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;
using ReaderWriter = grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>;

const Shape kShape;

class Streams : public ::testing::Test {
 protected:
  static server::Options Options() {
    server::Options options = TestOptions();
    options.http_listen = "127.0.0.1:0";
    return options;
  }
  v1::StreamRequest AppendMessage(const TestSession& session, std::uint64_t id, std::int64_t first,
                                  std::int64_t count) const {
    v1::StreamRequest request;
    request.set_id(id);
    *request.mutable_append() = session.AppendOf(tokens_, first, count);
    return request;
  }
  v1::StreamRequest AttendMessage(const TestSession& session, std::uint64_t id,
                                  std::int64_t count) const {
    v1::StreamRequest request;
    request.set_id(id);
    *request.mutable_attend() = session.AttendOf(kShape, queries_, 0, count);
    return request;
  }

  TestServer server_{Options()};
  const Tokens tokens_ = RandomTokens(kShape, 4000, 1);
  const std::vector<float> queries_ = RandomQueries(kShape, 4000, 1);
  const v1::SessionConfig config_ = ConfigOf({ExactGroup(kShape)});
};

TEST_F(Streams, AnswerInOrderWithTheIdsOfTheMessages) {
  const TestSession session(server_.stub(), "s", config_);
  const auto context = Context();
  const auto stream = server_.stub().Stream(context.get());
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < 300; ++i) {
      const auto first = static_cast<std::int64_t>(i / 3) * 10;
      v1::StreamRequest request;
      if (i % 3 == 0) request = AppendMessage(session, i * 7, first, 5);
      if (i % 3 == 1)
        request = AttendMessage(session, i * 7, 1 + static_cast<std::int64_t>(i % 40));
      if (i % 3 == 2) {
        request.set_id(i * 7);
        *request.mutable_step() = session.StepOf(tokens_, queries_, first + 5, 5);
      }
      ASSERT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  v1::StreamResponse response;
  for (std::uint64_t i = 0; i < 300; ++i) {
    ASSERT_TRUE(stream->Read(&response));
    ASSERT_EQ(response.id(), i * 7);
    ASSERT_EQ(response.status().code(), 0) << response.status().message();
    const auto first = static_cast<std::int64_t>(i / 3) * 10;
    if (i % 3 == 0) {
      EXPECT_EQ(response.append().positions(0).position(), first + 5);
    }
    // An Attend sees exactly the messages before it.
    if (i % 3 == 1) {
      EXPECT_EQ(response.attend().position(), first + 5);
    }
    if (i % 3 == 2) {
      EXPECT_EQ(response.step().position(), first + 10);
    }
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(Succeeded(stream->Finish()));
  writer.join();
}

TEST_F(Streams, AFailedMessageHasItsOwnStatusAndEndsNothing) {
  const TestSession session(server_.stub(), "s", config_);
  const TestSession other(server_.stub(), "other", config_);
  const auto context = Context();
  const auto stream = server_.stub().Stream(context.get());
  const auto exchange = [&](const v1::StreamRequest& request) {
    v1::StreamResponse response;
    EXPECT_TRUE(stream->Write(request));
    EXPECT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.id(), request.id());
    return response;
  };
  EXPECT_EQ(exchange(AppendMessage(session, 1, 0, 10)).status().code(), 0);
  v1::StreamResponse response = exchange(AppendMessage(session, 2, 5, 10));
  EXPECT_TRUE(FailedWith(response.status(), StatusCode::OUT_OF_RANGE, v1::WRONG_POSITION));
  EXPECT_EQ(response.message_case(), v1::StreamResponse::MESSAGE_NOT_SET);
  EXPECT_EQ(MetadataOf(response.status())["position"], "10");

  v1::StreamRequest request;
  request.set_id(3);
  EXPECT_TRUE(
      FailedWith(exchange(request).status(), StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  EXPECT_TRUE(FailedWith(exchange(AttendMessage(other, 4, 1)).status(),
                         StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request = AttendMessage(session, 5, 2);
  request.mutable_attend()->clear_session_id();
  EXPECT_EQ(exchange(request).attend().position(), 10) << "the stream's session is meant";
  request = AppendMessage(session, 6, 0, 10);
  EXPECT_TRUE(exchange(request).append().replayed());
  stream->WritesDone();
  EXPECT_TRUE(Succeeded(stream->Finish()));
}

TEST_F(Streams, AHalfClosedStreamAnswersAllThatWasSent) {
  const TestSession session(server_.stub(), "s", config_);
  const auto context = Context();
  const auto stream = server_.stub().Stream(context.get());
  for (std::uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(stream->Write(AppendMessage(session, i, static_cast<std::int64_t>(i) * 20, 20)));
  }
  stream->WritesDone();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  v1::StreamResponse response;
  std::uint64_t answers = 0;
  while (stream->Read(&response)) EXPECT_EQ(response.id(), answers++);
  EXPECT_EQ(answers, 50U);
  EXPECT_TRUE(Succeeded(stream->Finish()));
}

TEST_F(Streams, AnEmptyStreamEndsWell) {
  const auto context = Context();
  const auto stream = server_.stub().Stream(context.get());
  stream->WritesDone();
  EXPECT_TRUE(Succeeded(stream->Finish()));
}

TEST_F(Streams, CancelledMidwayLeavesWholeMessagesOnly) {
  for (int round = 0; round < Rounds(20); ++round) {
    const TestSession session(server_.stub(), "s" + std::to_string(round), config_);
    const auto context = Context();
    {
      const auto stream = server_.stub().Stream(context.get());
      for (int i = 0; i < 40; ++i) {
        if (!stream->Write(AppendMessage(session, 1, std::int64_t{97} * i, 97))) break;
        if (i == 2 * round) context->TryCancel();
      }
      EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
    }
    ASSERT_TRUE(server_.WaitForMetric("attnd_inflight_bytes", 0));
    const std::int64_t position = session.Get()->position();
    EXPECT_EQ(position % 97, 0);
    // The session goes on from there with the bits of one that was never interrupted.
    ASSERT_TRUE(Succeeded(session.Append(tokens_, position, 4000 - position).status));
    const TestSession plain(server_.stub(), "plain" + std::to_string(round), config_);
    ASSERT_TRUE(Succeeded(plain.Append(tokens_, 0, 4000).status));
    EXPECT_EQ(session.Attend(session.AttendOf(kShape, queries_, 0, 5))->answer().outputs().data(),
              plain.Attend(plain.AttendOf(kShape, queries_, 0, 5))->answer().outputs().data());
  }
}

TEST_F(Streams, OfADeletedSessionFailPerMessage) {
  const TestSession session(server_.stub(), "s", config_);
  const auto context = Context();
  const auto stream = server_.stub().Stream(context.get());
  v1::StreamResponse response;
  ASSERT_TRUE(stream->Write(AppendMessage(session, 1, 0, 10)));
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(Succeeded(session.Delete()));
  ASSERT_TRUE(stream->Write(AppendMessage(session, 2, 10, 10)));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(FailedWith(response.status(), StatusCode::NOT_FOUND, v1::DELETED));
  stream->WritesDone();
  EXPECT_TRUE(Succeeded(stream->Finish()));
}

// ---- Peers that do not read

// A client that writes on and never reads; how many messages it got rid of within a second.
class NeverReads {
 public:
  NeverReads(TestServer& server, const v1::StreamRequest& request, int most)
      : channel_(server.NewChannel()),
        stub_(v1::AttentionService::NewStub(channel_)),
        stream_(stub_->Stream(context_.get())),
        writer_([this, request, most] {
          while (written_ < most && stream_->Write(request)) ++written_;
        }) {}
  ~NeverReads() {
    context_->TryCancel();
    writer_.join();
  }

  int written() const { return written_; }
  // Reads what is left, and the end.
  grpc::Status End() {
    v1::StreamResponse response;
    while (stream_->Read(&response)) last_ = response.id();
    return stream_->Finish();
  }
  std::uint64_t last() const { return last_; }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_ = Context();
  std::unique_ptr<ReaderWriter> stream_;
  std::atomic<int> written_{0};
  std::uint64_t last_ = 0;
  std::thread writer_;
};

TEST(StreamBounds, AClientThatOnlyWritesIsNotReadBeyondTheBound) {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  options.max_stream_messages = 8;
  TestServer server(options);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const Tokens tokens = RandomTokens(kShape, 10, 1);
  ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 10).status));
  const std::vector<float> queries = RandomQueries(kShape, 2000, 1);
  v1::StreamRequest request;
  *request.mutable_attend() = session.AttendOf(kShape, queries, 0, 2000);  // 128 KB in and out
  NeverReads client(server, request, 2000);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  // What fits into the bound, the flow-control windows and the socket buffers, and then no more.
  const int written = client.written();
  EXPECT_LT(written, 200);
  EXPECT_LE(server.Metric("attnd_queue_depth"), 8);
  EXPECT_LE(server.Metric("attnd_inflight_bytes"), 8 * 2 * 140'000);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(client.written(), written);
  // Others do not notice.
  EXPECT_TRUE(Succeeded(session.Attend(session.AttendOf(kShape, queries, 0, 1)).status));
}

TEST(StreamBounds, ASlowReaderIsEndedAndToldWhereItStood) {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  options.slow_reader_timeout = absl::Milliseconds(500);
  TestServer server(options);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const Tokens tokens = RandomTokens(kShape, 10, 1);
  ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 10).status));
  const std::vector<float> queries = RandomQueries(kShape, 4000, 1);
  v1::StreamRequest request;
  request.set_id(42);
  *request.mutable_attend() = session.AttendOf(kShape, queries, 0, 4000);
  NeverReads client(server, request, 2000);
  const std::string metric = "attnd_rejected_total{reason=\"SLOW_READER\"}";
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(server.WaitForMetric(metric, 1));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(2500));
  // The peer begins to read in time: it gets what had left, and the status.
  const grpc::Status status = client.End();
  EXPECT_TRUE(FailedWith(status, StatusCode::RESOURCE_EXHAUSTED, v1::SLOW_READER));
  EXPECT_EQ(MetadataOf(status)["answered"], "42");
  EXPECT_EQ(MetadataOf(status)["position.0"], "10");
  EXPECT_TRUE(server.WaitForMetric("attnd_inflight_bytes", 0));
  EXPECT_EQ(server.Metric("attnd_queue_depth"), 0);
}

TEST(StreamBounds, AReaderThatNeverReadsAgainHoldsNothing) {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  options.slow_reader_timeout = absl::Milliseconds(300);
  TestServer server(options);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const std::vector<float> queries = RandomQueries(kShape, 4000, 1);
  v1::StreamRequest request;
  *request.mutable_attend() = session.AttendOf(kShape, queries, 0, 4000);
  NeverReads client(server, request, 2000);
  ASSERT_TRUE(server.WaitForMetric("attnd_rejected_total{reason=\"SLOW_READER\"}", 1));
  EXPECT_TRUE(server.WaitForMetric("attnd_inflight_bytes", 0));
  EXPECT_EQ(server.Metric("attnd_queue_depth"), 0);
}

}  // namespace
}  // namespace attnd::e2e
