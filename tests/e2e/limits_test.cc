// Limits are refused at once and by name, and what was taken is given back.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/raw_call.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape;

server::Options Options() {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  return options;
}

v1::AttendRequest Waiting(const TestSession& session, const std::vector<float>& queries,
                          std::int64_t count) {
  v1::AttendRequest request = session.AttendOf(kShape, queries, 0, count);
  request.set_min_position(std::int64_t{1} << 40);
  request.set_wait(true);
  return request;
}

// Attends that are under way until the object ends.
class UnderWay {
 public:
  UnderWay(TestServer& server, const v1::AttendRequest& request, int count) {
    for (int i = 0; i < count; ++i) {
      contexts_.push_back(Context());
      threads_.emplace_back([&server, request, context = contexts_.back().get()] {
        v1::AttendResponse response;
        server.stub().Attend(context, request, &response);
      });
    }
    EXPECT_TRUE(server.WaitForMetric("attnd_queue_depth", count));
  }
  ~UnderWay() {
    for (const auto& context : contexts_) context->TryCancel();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::thread> threads_;
};

// A session whose Attends of many queries take a second and more.
class LongSession {
 public:
  explicit LongSession(TestServer& server)
      : session_(server.stub(), "long", ConfigOf({ExactGroup(kWide)})) {
    const Tokens tokens = RandomTokens(kWide, kTokens, 1);
    for (std::int64_t at = 0; at < kTokens; at += kPiece) {
      EXPECT_TRUE(Succeeded(session_.Append(tokens, at, kPiece).status));
    }
  }
  v1::AttendRequest Attend() const {
    return session_.AttendOf(kWide, RandomQueries(kWide, kQueries, 2), 0, kQueries);
  }

 private:
  static constexpr Shape kWide = {.kv_heads = 1, .query_heads = 1, .key_dim = 64, .value_dim = 64};
  static constexpr std::int64_t kTokens = 65'536;
  static constexpr std::int64_t kPiece = 8192;
  static constexpr std::int64_t kQueries = 8192;
  const TestSession session_;
};

TEST(Limits, AFullQueueAnswersAtOnce) {
  server::Options options = Options();
  options.max_queued_requests = 2;
  TestServer server(options);
  const LongSession busy(server);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const std::vector<float> queries = RandomQueries(kShape, 1, 1);
  {
    const UnderWay work(server, busy.Attend(), 2);
    const auto start = std::chrono::steady_clock::now();
    const grpc::Status status = session.Attend(session.AttendOf(kShape, queries, 0, 1)).status;
    EXPECT_TRUE(FailedWith(status, StatusCode::RESOURCE_EXHAUSTED, v1::QUEUE_FULL));
    EXPECT_TRUE(HasRetryInfo(status));
    EXPECT_TRUE(FailedWith(session.Append(RandomTokens(kShape, 1, 1), 0, 1).status,
                           StatusCode::RESOURCE_EXHAUSTED, v1::QUEUE_FULL));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
    EXPECT_EQ(server.Metric("attnd_rejected_total{reason=\"QUEUE_FULL\"}"), 2);
    EXPECT_TRUE(Succeeded(session.Get().status)) << "bookkeeping needs no place in the queue";
  }
  EXPECT_TRUE(server.WaitForMetric("attnd_queue_depth", 0));
  EXPECT_EQ(server.Metric("attnd_inflight_bytes"), 0);
  EXPECT_TRUE(Succeeded(session.Attend(session.AttendOf(kShape, queries, 0, 1)).status));
}

// Waits once took the places of the Appends that would have ended them.
TEST(Limits, WaitsDoNotKeepOutWhatWouldEndThem) {
  server::Options options = Options();
  options.max_queued_requests = 20;
  TestServer server(options);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const std::vector<float> queries = RandomQueries(kShape, 1, 1);
  {
    const UnderWay waits(server, Waiting(session, queries, 1), 5);
    const grpc::Status sixth = session.Attend(Waiting(session, queries, 1)).status;
    EXPECT_TRUE(FailedWith(sixth, StatusCode::RESOURCE_EXHAUSTED, v1::QUEUE_FULL));
    EXPECT_TRUE(Succeeded(session.Append(RandomTokens(kShape, 1, 1), 0, 1).status));
    EXPECT_TRUE(Succeeded(session.Attend(session.AttendOf(kShape, queries, 0, 1)).status));
  }
  EXPECT_TRUE(server.WaitForMetric("attnd_queue_depth", 0));
  EXPECT_EQ(server.Metric("attnd_inflight_bytes"), 0);
}

TEST(Limits, BytesUnderWayAreBounded) {
  server::Options options = Options();
  options.max_inflight_bytes = 11'000'000;
  TestServer server(options);
  const LongSession busy(server);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const std::vector<float> queries = RandomQueries(kShape, 20'000, 1);
  {
    const UnderWay work(server, busy.Attend(), 1);  // 2 MiB in and out, and 4 MiB to compute with
    EXPECT_GT(server.Metric("attnd_inflight_bytes"), 8'000'000);
    const grpc::Status status = session.Attend(session.AttendOf(kShape, queries, 0, 20'000)).status;
    EXPECT_TRUE(FailedWith(status, StatusCode::RESOURCE_EXHAUSTED, v1::INFLIGHT_BYTES));
    EXPECT_TRUE(HasRetryInfo(status));
    EXPECT_TRUE(Succeeded(session.Attend(session.AttendOf(kShape, queries, 0, 1)).status));
  }
  EXPECT_TRUE(server.WaitForMetric("attnd_inflight_bytes", 0));
  // One that is larger than the whole limit passes alone.
  options.max_inflight_bytes = 1'000'000;
  TestServer small(options);
  const TestSession other(small.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  EXPECT_TRUE(Succeeded(other.Attend(other.AttendOf(kShape, queries, 0, 20'000)).status));
  EXPECT_TRUE(small.WaitForMetric("attnd_inflight_bytes", 0));
}

TEST(Limits, SessionsAreBoundedAndAPlaceIsFreeAgainAfterADelete) {
  server::Options options = Options();
  options.max_sessions = 3;
  TestServer server(options);
  std::vector<std::unique_ptr<TestSession>> sessions;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(std::make_unique<TestSession>(server.stub(), "s" + std::to_string(i),
                                                     ConfigOf({ExactGroup(kShape)})));
  }
  v1::CreateSessionRequest request;
  request.set_session_id("s3");
  *request.mutable_config() = ConfigOf({ExactGroup(kShape)});
  v1::Session response;
  EXPECT_TRUE(FailedWith(server.stub().CreateSession(Context().get(), request, &response),
                         StatusCode::RESOURCE_EXHAUSTED, v1::TOO_MANY_SESSIONS));
  request.set_session_id("s1");
  EXPECT_TRUE(Succeeded(server.stub().CreateSession(Context().get(), request, &response)))
      << "a retry needs no place";
  ASSERT_TRUE(Succeeded(sessions[0]->Delete()));
  request.set_session_id("s3");
  EXPECT_TRUE(Succeeded(server.stub().CreateSession(Context().get(), request, &response)));
  EXPECT_EQ(server.Metric("attnd_sessions"), 3);
}

TEST(Limits, StateIsBoundedAndGivenBack) {
  server::Options options = Options();
  options.max_state_bytes = 1 << 20;
  TestServer server(options);
  ASSERT_EQ(server.Metric("attnd_state_bytes"), 0);
  const Tokens tokens = RandomTokens(kShape, 5000, 1);
  {
    const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
    std::int64_t position = 0;
    grpc::Status status;
    while (status.ok() && position < 20'000) {
      v1::AppendRequest request = session.AppendOf(tokens, 0, 500);
      request.mutable_tokens(0)->set_position(position);
      status = session.Append(request).status;
      if (status.ok()) position += 500;
    }
    EXPECT_TRUE(FailedWith(status, StatusCode::RESOURCE_EXHAUSTED, v1::STATE_BYTES));
    EXPECT_GE(position, 2000) << "128 bytes a token";
    const Reply<v1::Session> reply = session.Get();
    EXPECT_EQ(reply->position(), position);
    EXPECT_GE(reply->state_bytes(), position * 128);
    // What a message will take is known to within a segment of blocks.
    EXPECT_LE(reply->state_bytes(), (1 << 20) + (2 << 20));
    EXPECT_EQ(server.Metric("attnd_state_bytes"), static_cast<double>(reply->state_bytes()));
    // A retry of what is there is answered however short memory is.
    v1::AppendRequest retry = session.AppendOf(tokens, 0, 500);
    retry.mutable_tokens(0)->set_position(position - 500);
    EXPECT_TRUE(session.Append(retry)->replayed());
    EXPECT_TRUE(Succeeded(
        session.Attend(session.AttendOf(kShape, RandomQueries(kShape, 1, 1), 0, 1)).status));
    ASSERT_TRUE(Succeeded(session.Delete()));
  }
  EXPECT_TRUE(server.WaitForMetric("attnd_state_bytes", 0));
  // A session whose states alone are too large.
  v1::CreateSessionRequest request;
  *request.mutable_config() = ConfigOf(
      {LinearGroup({.kv_heads = 64, .query_heads = 64, .key_dim = 256, .value_dim = 256})});
  v1::Session response;
  EXPECT_TRUE(FailedWith(server.stub().CreateSession(Context().get(), request, &response),
                         StatusCode::RESOURCE_EXHAUSTED, v1::STATE_BYTES));
  EXPECT_EQ(server.Metric("attnd_state_bytes"), 0);
}

TEST(Limits, AllAccountsReturnToZero) {
  TestServer server(Options());
  const Tokens tokens = RandomTokens(kShape, 500, 1);
  const std::vector<float> queries = RandomQueries(kShape, 500, 1);
  std::vector<std::thread> clients;
  for (int c = 0; c < 6; ++c) {
    clients.emplace_back([&, c] {
      for (int round = 0; round < Rounds(20); ++round) {
        const TestSession session(
            server.stub(), "s" + std::to_string(c) + "-" + std::to_string(round),
            ConfigOf({c % 2 == 0 ? ExactGroup(kShape) : LinearGroup(kShape)}));
        session.Append(tokens, 0, 300);
        session.Append(tokens, 0, 300);   // replayed
        session.Append(tokens, 10, 300);  // refused
        session.Step(session.StepOf(tokens, queries, 300, 200));
        session.Step(session.StepOf(tokens, queries, 300, 200));
        const auto context = Context();
        v1::AttendResponse response;
        std::thread cancel([&] { context->TryCancel(); });
        server.stub().Attend(context.get(), session.AttendOf(kShape, queries, 0, 500), &response);
        cancel.join();
        if (round % 2 == 0) {
          EXPECT_TRUE(Succeeded(session.Delete()));
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  v1::ListSessionsRequest request;
  request.set_page_size(1000);
  v1::ListSessionsResponse left;
  ASSERT_TRUE(Succeeded(server.stub().ListSessions(Context().get(), request, &left)));
  EXPECT_EQ(server.Metric("attnd_sessions"), left.sessions_size());
  double bytes = 0;
  ASSERT_TRUE(server.WaitForMetric("attnd_queue_depth", 0));
  for (const v1::Session& session : left.sessions()) {
    EXPECT_EQ(session.position(), 500);
    bytes += static_cast<double>(session.state_bytes());
  }
  EXPECT_TRUE(server.WaitForMetric("attnd_state_bytes", bytes));
  for (const v1::Session& session : left.sessions()) {
    v1::DeleteSessionRequest remove;
    remove.set_session_id(session.session_id());
    v1::DeleteSessionResponse response;
    ASSERT_TRUE(Succeeded(server.stub().DeleteSession(Context().get(), remove, &response)));
  }
  EXPECT_TRUE(server.WaitForMetric("attnd_state_bytes", 0));
  EXPECT_TRUE(server.WaitForMetric("attnd_inflight_bytes", 0));
  EXPECT_EQ(server.Metric("attnd_sessions"), 0);
}

TEST(Limits, AnAnswerThatIsTooLargeTellsTheLargestCountThatFits) {
  server::Options options = Options();
  options.max_response_bytes = 64 << 10;
  TestServer server(options);
  const Shape shape = {.kv_heads = 1, .query_heads = 3, .key_dim = 4, .value_dim = 7};
  const TestSession exact(server.stub(), "exact", ConfigOf({ExactGroup(shape)}));
  const TestSession linear(server.stub(), "linear", ConfigOf({LinearGroup(shape)}));
  const Tokens tokens = RandomTokens(shape, 100, 1);
  ASSERT_TRUE(Succeeded(exact.Append(tokens, 0, 100).status));
  const std::vector<float> queries = RandomQueries(shape, 5000, 1);
  for (int asked = 0; asked < 32; ++asked) {
    const bool is_exact = (asked & 1) == 0;
    const TestSession& session = is_exact ? exact : linear;
    v1::AnswerOptions answer;
    answer.set_flags((asked & 2) != 0);
    answer.set_partials((asked & 4) != 0);
    if (is_exact) answer.set_top_k((asked & 8) != 0 ? 64 : 0);
    if (!is_exact) answer.set_denominators((asked & 8) != 0);
    answer.set_output_dtype((asked & 16) != 0 ? v1::F16 : v1::F32);
    const grpc::Status status =
        session.Attend(session.AttendOf(shape, queries, 0, 5000, answer)).status;
    ASSERT_TRUE(FailedWith(status, StatusCode::RESOURCE_EXHAUSTED, v1::RESPONSE_TOO_LARGE));
    EXPECT_FALSE(HasRetryInfo(status)) << "a retry does not help";
    const std::int64_t most = std::stoll(MetadataOf(status)["max_queries"]);
    ASSERT_GT(most, 0);
    const Reply<v1::AttendResponse> fits =
        session.Attend(session.AttendOf(shape, queries, 0, most, answer));
    ASSERT_TRUE(Succeeded(fits.status));
    EXPECT_LE(fits->ByteSizeLong(), 64U << 10);
    // Positions take fewer bytes than they may.
    if (answer.top_k() == 0) {
      EXPECT_GT(fits->ByteSizeLong(), 62U << 10) << "asked " << asked;
    }
    EXPECT_TRUE(
        FailedWith(session.Attend(session.AttendOf(shape, queries, 0, most + 1, answer)).status,
                   StatusCode::RESOURCE_EXHAUSTED, v1::RESPONSE_TOO_LARGE));
  }
  EXPECT_TRUE(FailedWith(exact
                             .Step([&] {
                               const Tokens many = RandomTokens(shape, 5000, 1);
                               v1::StepRequest request = exact.StepOf(many, queries, 0, 5000);
                               request.mutable_tokens()->set_position(100);
                               return request;
                             }())
                             .status,
                         StatusCode::RESOURCE_EXHAUSTED, v1::RESPONSE_TOO_LARGE));
  EXPECT_EQ(exact.Get()->position(), 100);
}

// A query of one row on one session is answered while whole batches run on another.
TEST(Limits, BigWorkDoesNotStallAnotherSession) {
  server::Options options = Options();
  TestServer server(options);
  const Shape shape = {.kv_heads = 2, .query_heads = 2, .key_dim = 64, .value_dim = 64};
  const TestSession big(server.stub(), "big", ConfigOf({ExactGroup(shape)}));
  const TestSession small(server.stub(), "small", ConfigOf({LinearGroup(shape)}));
  const Tokens tokens = RandomTokens(shape, 4000, 1);
  const std::vector<float> queries = RandomQueries(shape, 4000, 1);
  ASSERT_TRUE(Succeeded(small.Append(tokens, 0, 100).status));
  for (std::int64_t i = 0; i < 10; ++i) {
    v1::AppendRequest request = big.AppendOf(tokens, 0, 4000);
    request.mutable_tokens(0)->set_position(i * 4000);
    ASSERT_TRUE(Succeeded(big.Append(request).status));
  }
  std::atomic<int> finished{0};
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (int i = 0; i < 4; ++i) {
    contexts.push_back(Context());
    threads.emplace_back([&, context = contexts.back().get()] {
      v1::AttendResponse response;
      server.stub().Attend(context, big.AttendOf(shape, queries, 0, 4000), &response);
      ++finished;
    });
  }
  ASSERT_TRUE(server.WaitForMetric("attnd_queue_depth", 4));
  int answered = 0;
  while (finished == 0 && answered < 50) {
    ASSERT_TRUE(Succeeded(small.Attend(small.AttendOf(shape, queries, 0, 1)).status));
    ++answered;
  }
  EXPECT_GE(answered, 20) << "one-row answers came before the first of the large ones";
  // Cancelled work ends soon: it does not run to its end for nobody.
  for (const auto& context : contexts) context->TryCancel();
  for (std::thread& thread : threads) thread.join();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(server.WaitForMetric("attnd_queue_depth", 0));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

// A unary call whose answer is larger than the peer's window, and which the peer does not read.
TEST(Limits, AUnaryPeerThatDoesNotReadHoldsItsShareForAWhileOnly) {
  server::Options options = Options();
  options.slow_reader_timeout = absl::Milliseconds(500);
  TestServer server(options);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const std::vector<float> queries = RandomQueries(kShape, 50'000, 1);
  const std::string request = session.AttendOf(kShape, queries, 0, 50'000).SerializeAsString();
  const std::string metric = "attnd_rejected_total{reason=\"SLOW_READER\"}";

  grpc::ChannelArguments window;  // stays as small as it begins
  window.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  grpc::GenericStub stub(server.NewChannel(window));
  grpc::CompletionQueue queue;
  const auto context = Context();
  void* tag = nullptr;
  bool ok = false;
  const auto call = stub.PrepareCall(context.get(), "/attnd.v1.AttentionService/Attend", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok));
  call->WriteLast(ToBuffer(request), {}, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  // The end of the call, but not its answer. Waiting for it is also what moves the connection.
  grpc::Status status;
  call->Finish(&status, nullptr);
  std::thread end([&] { queue.Next(&tag, &ok); });
  EXPECT_TRUE(server.WaitForMetric("attnd_queue_depth", 1)) << "the answer is held";

  // One that reads, meanwhile and after, is answered in full.
  for (int i = 0; i < 20; ++i) {
    const auto reply = session.Attend(session.AttendOf(kShape, queries, 0, 50'000));
    EXPECT_TRUE(Succeeded(reply.status));
    EXPECT_EQ(Floats(reply->answer().outputs()).size(), queries.size());
    if (i > 3 && server.Metric(metric) > 0) break;
  }
  EXPECT_TRUE(server.WaitForMetric(metric, 1));
  EXPECT_TRUE(server.WaitForMetric("attnd_queue_depth", 0));
  EXPECT_TRUE(server.WaitForMetric("attnd_inflight_bytes", 0));
  context->TryCancel();  // where nothing has ended the call, so that the test does
  end.join();
}

}  // namespace
}  // namespace attnd::e2e
