// The server's end: streams are told where they stand, work under way finishes, nobody can hold it
// up, and what was acknowledged was applied.
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
#include "tests/e2e/raw_call.h"
#include "tests/e2e/raw_socket.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;
using std::chrono::steady_clock;

const Shape kShape;

v1::StreamRequest AppendMessage(const TestSession& session, const Tokens& tokens, std::uint64_t id,
                                std::int64_t first, std::int64_t count) {
  v1::StreamRequest request;
  request.set_id(id);
  *request.mutable_append() = session.AppendOf(tokens, first, count);
  return request;
}

TEST(Drain, TellsAnIdleStreamWhereItStands) {
  TestServer server;
  const TestSession session(server.stub(), "s",
                            ConfigOf({ExactGroup(kShape), LinearGroup(kShape)}));
  const Tokens tokens = RandomTokens(kShape, 100, 1);
  const auto context = Context();
  const auto stream = server.stub().Stream(context.get());
  v1::StreamResponse response;
  for (std::uint64_t id : {11U, 12U}) {
    ASSERT_TRUE(stream->Write(
        AppendMessage(session, tokens, id, static_cast<std::int64_t>(id - 11) * 30, 30)));
    ASSERT_TRUE(stream->Read(&response));
  }
  const auto idle_context = Context();
  const auto idle = server.stub().Stream(idle_context.get());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));

  const steady_clock::time_point start = steady_clock::now();
  std::thread drain([&] { server.server().Drain(); });
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(FailedWith(status, StatusCode::UNAVAILABLE, v1::SHUTTING_DOWN));
  EXPECT_EQ(MetadataOf(status)["answered"], "12");
  EXPECT_EQ(MetadataOf(status)["position.0"], "60");
  EXPECT_EQ(MetadataOf(status)["position.1"], "0");
  const grpc::Status unused = idle->Finish();
  EXPECT_TRUE(FailedWith(unused, StatusCode::UNAVAILABLE, v1::SHUTTING_DOWN));
  EXPECT_EQ(MetadataOf(unused).count("answered"), 0U);
  drain.join();
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(2));
}

TEST(Drain, WithAStuckReaderEndsWithinTheDeadline) {
  server::Options options = TestOptions();
  options.drain_deadline = absl::Seconds(1);
  TestServer server(options);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const std::vector<float> queries = RandomQueries(kShape, 4000, 1);
  v1::StreamRequest request;
  *request.mutable_attend() = session.AttendOf(kShape, queries, 0, 4000);
  const auto context = Context();
  const auto stream = server.stub().Stream(context.get());
  std::thread writer([&] {
    while (stream->Write(request)) {
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const steady_clock::time_point start = steady_clock::now();
  server.server().Drain();
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(3));
  context->TryCancel();
  writer.join();
}

// Added to the time, an infinite deadline once lay in the past.
TEST(Drain, WithAnInfiniteDeadlineLetsWorkUnderWayEnd) {
#ifdef ATTND_SANITIZED
  constexpr std::int64_t kQueries = 400;
#else
  constexpr std::int64_t kQueries = 4000;
#endif
  server::Options options = TestOptions();
  options.drain_deadline = absl::InfiniteDuration();
  TestServer server(options);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(RandomTokens(kShape, 20'000, 1), 0, 20'000).status));
  const std::vector<float> queries = RandomQueries(kShape, kQueries, 1);
  grpc::Status status;
  std::thread caller(
      [&] { status = session.Attend(session.AttendOf(kShape, queries, 0, kQueries)).status; });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  server.server().Drain();
  caller.join();
  EXPECT_TRUE(Succeeded(status));
}

TEST(Drain, WithConnectionsThatSayNothingEndsWithinTheDeadline) {
  server::Options options = TestOptions();
  options.drain_deadline = absl::Seconds(1);
  TestServer server(options);
  std::vector<RawSocket> silent;
  for (int i = 0; i < 20; ++i) silent.emplace_back(server.address());
  silent[3].Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const steady_clock::time_point start = steady_clock::now();
  server.server().Drain();
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(3));
}

TEST(Drain, TellsHealthChecksBeforeItRefusesCalls) {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  options.drain_delay = absl::Milliseconds(700);
  TestServer server(options);
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  // grpc.health.v1: the request's field 1 is the service's name, the answer's field 1 its status.
  const std::string serving = "\x08\x01";
  const std::string not_serving = "\x08\x02";
  const auto check = [&](const std::string& service) {
    const Reply<std::string> reply =
        RawCall(server.channel(), "/grpc.health.v1.Health/Check",
                std::string("\x0a") + static_cast<char>(service.size()) + service);
    EXPECT_TRUE(Succeeded(reply.status));
    return reply.value;
  };
  EXPECT_EQ(check(""), serving);
  EXPECT_EQ(check("attnd.v1.AttentionService"), serving);
  EXPECT_NE(HttpGet(server.server().http_address(), "/readyz").find(" 200"), std::string::npos);

  std::thread drain([&] { server.server().Drain(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  EXPECT_EQ(check(""), not_serving);
  EXPECT_EQ(check("attnd.v1.AttentionService"), not_serving);
  EXPECT_NE(HttpGet(server.server().http_address(), "/readyz").find(" 503"), std::string::npos);
  EXPECT_NE(HttpGet(server.server().http_address(), "/livez").find(" 200"), std::string::npos);
  EXPECT_TRUE(Succeeded(session.Append(RandomTokens(kShape, 5, 1), 0, 5).status));
  drain.join();
}

// Clients append as fast as they can, by calls and by streams, until the server is gone. Every
// acknowledged token was applied, every other message failed in a way that says it may be retried.
TEST(Drain, UnderLoadLosesNoAcknowledgedAppend) {
  TestServer server;
  constexpr int kClients = 8;
  const Tokens tokens = RandomTokens(kShape, 64, 1);
  std::vector<std::unique_ptr<TestSession>> sessions;
  for (int i = 0; i < kClients; ++i) {
    sessions.push_back(std::make_unique<TestSession>(server.stub(), "s" + std::to_string(i),
                                                     ConfigOf({ExactGroup(kShape)})));
  }
  std::atomic<std::int64_t> acknowledged[kClients] = {};
  std::vector<std::thread> clients;
  for (std::size_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const TestSession& session = *sessions[i];
      v1::AppendRequest request = session.AppendOf(tokens, 0, 16);
      if (i % 2 == 0) {
        while (true) {
          request.mutable_tokens(0)->set_position(acknowledged[i]);
          const Reply<v1::AppendResponse> reply = session.Append(request);
          if (!reply.status.ok()) {
            // A connection that is being closed has no room for a reason.
            if (reply.status.error_code() != StatusCode::UNAVAILABLE) {
              ADD_FAILURE() << "a call ended with " << reply.status.error_code() << ": "
                            << reply.status.error_message();
            }
            return;
          }
          acknowledged[i] = reply->positions(0).position();
        }
      }
      const auto context = Context();
      const auto stream = server.stub().Stream(context.get());
      v1::StreamRequest message;
      v1::StreamResponse response;
      while (true) {
        request.mutable_tokens(0)->set_position(acknowledged[i]);
        *message.mutable_append() = request;
        if (!stream->Write(message) || !stream->Read(&response)) break;
        if (response.status().code() != 0) {
          EXPECT_TRUE(FailedWith(response.status(), StatusCode::UNAVAILABLE, v1::SHUTTING_DOWN));
          continue;
        }
        acknowledged[i] = response.append().positions(0).position();
      }
      EXPECT_TRUE(FailedWith(stream->Finish(), StatusCode::UNAVAILABLE, v1::SHUTTING_DOWN));
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const steady_clock::time_point start = steady_clock::now();
  server.server().Drain();
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(3));
  for (std::thread& client : clients) client.join();
  for (std::size_t i = 0; i < kClients; ++i) {
    const auto session =
        server.server().sessions().Find({server::Session::kDefaultTenant, sessions[i]->id()});
    ASSERT_TRUE(session.ok());
    const std::int64_t position = (*session)->position(0);
    EXPECT_GT(acknowledged[i], 0);
    EXPECT_GE(position, acknowledged[i]);
    EXPECT_LE(position, acknowledged[i] + 16) << "at most one message was not answered";
  }
}

TEST(Drain, CutsLongWorkAtTheDeadline) {
  server::Options options = TestOptions();
  options.drain_deadline = absl::Milliseconds(300);
  options.workers = 1;
  TestServer server(options);
  const Shape shape = {.kv_heads = 4, .query_heads = 4, .key_dim = 64, .value_dim = 64};
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(shape)}));
  const Tokens tokens = RandomTokens(shape, 3000, 1);
  for (std::int64_t round = 0; round < 10; ++round) {
    v1::AppendRequest request = session.AppendOf(tokens, 0, 3000);
    request.mutable_tokens(0)->set_position(round * 3000);
    ASSERT_TRUE(Succeeded(session.Append(request).status));
  }
  const std::vector<float> queries = RandomQueries(shape, 4000, 1);
  std::vector<std::thread> clients;
  std::atomic<int> ended{0};
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      session.Attend(session.AttendOf(shape, queries, 0, 4000));
      ++ended;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(ended, 4) << "the work must outlast the start of the drain";
  const steady_clock::time_point start = steady_clock::now();
  server.server().Drain();
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(2));
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace attnd::e2e
