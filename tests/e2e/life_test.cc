// Time-to-live over the wire, on a clock that the test moves.
#include <chrono>
#include <cstdint>
#include <ctime>
#include <string>
#include <thread>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/server/fake_clock.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape;

server::Options Options() {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  options.slow_reader_timeout = absl::Milliseconds(100);  // how often the reaper looks, at least
  return options;
}

v1::SessionConfig Living(std::int64_t seconds) {
  v1::SessionConfig config = ConfigOf({ExactGroup(kShape)});
  config.mutable_time_to_live()->set_seconds(seconds);
  return config;
}

TEST(Life, AnIdleSessionExpiresAndItsMemoryIsGivenBack) {
  server::FakeClock clock;
  TestServer server(Options(), clock);
  const TestSession session(server.stub(), "s", Living(60));
  const Tokens tokens = RandomTokens(kShape, 1000, 1);
  ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 1000).status));
  clock.Advance(absl::Seconds(59));
  EXPECT_EQ(session.Get()->expires_in().seconds(), 1);
  ASSERT_TRUE(Succeeded(
      session.Attend(session.AttendOf(kShape, RandomQueries(kShape, 1, 1), 0, 1)).status));
  EXPECT_EQ(session.Get()->expires_in().seconds(), 60) << "an Attend is a use";
  clock.Advance(absl::Seconds(60));
  // Without anybody looking for it.
  EXPECT_TRUE(server.WaitForMetric("attnd_sessions", 0));
  EXPECT_TRUE(server.WaitForMetric("attnd_state_bytes", 0));
  EXPECT_TRUE(FailedWith(session.Get().status, StatusCode::NOT_FOUND, v1::EXPIRED));
  EXPECT_TRUE(FailedWith(session.Append(tokens, 0, 1).status, StatusCode::NOT_FOUND, v1::EXPIRED));
  EXPECT_TRUE(Succeeded(session.Delete()));
}

TEST(Life, ASessionInUseDoesNotExpire) {
  server::FakeClock clock;
  TestServer server(Options(), clock);
  const TestSession session(server.stub(), "s", Living(60));
  v1::AttendRequest request = session.AttendOf(kShape, RandomQueries(kShape, 1, 1), 0, 1);
  request.set_min_position(1);
  request.set_wait(true);
  Reply<v1::AttendResponse> reply;
  grpc::ClientContext context;  // no deadline: the server's clock will jump over any
  std::thread waiting(
      [&] { reply.status = server.stub().Attend(&context, request, &reply.value); });
  ASSERT_TRUE(server.WaitForMetric("attnd_queue_depth", 1));
  clock.Advance(absl::Hours(5));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(Succeeded(session.Get().status));
  v1::AppendRequest append = session.AppendOf(RandomTokens(kShape, 1, 1), 0, 1);
  ASSERT_TRUE(Succeeded(session.Append(append).status));
  waiting.join();
  EXPECT_TRUE(Succeeded(reply.status));
  EXPECT_TRUE(server.WaitForMetric("attnd_queue_depth", 0));
  clock.Advance(absl::Seconds(61));
  EXPECT_TRUE(server.WaitForMetric("attnd_sessions", 0));
}

// The reaper ran without a pause while a session of a nanosecond's time-to-live was in use.
TEST(Life, TheReaperSleepsWhateverTimeToLiveAClientAsksFor) {
  TestServer server(Options());
  v1::SessionConfig config = ConfigOf({ExactGroup(kShape)});
  config.mutable_time_to_live()->set_nanos(50'000'000);
  const TestSession session(server.stub(), "s", config);
  v1::AttendRequest request = session.AttendOf(kShape, RandomQueries(kShape, 1, 1), 0, 1);
  request.set_min_position(1);
  request.set_wait(true);
  const auto context = Context(2);
  v1::AttendResponse response;
  std::thread waiting([&] { server.stub().Attend(context.get(), request, &response); });
  ASSERT_TRUE(server.WaitForMetric("attnd_queue_depth", 1));
  v1::UpdateSessionRequest update;
  update.set_session_id("s");
  update.mutable_time_to_live()->set_nanos(1);
  v1::Session updated;
  ASSERT_TRUE(Succeeded(server.stub().UpdateSession(Context().get(), update, &updated)));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double busy = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(busy, 0.2) << "seconds of processor time in half a second of waiting";
  waiting.join();
}

}  // namespace
}  // namespace attnd::e2e
