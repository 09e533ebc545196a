// Attend that waits for a position, and what ends the wait.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/attend_fixture.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

class MinPosition : public Attend {
 protected:
  MinPosition() { EXPECT_TRUE(Succeeded(session_.Append(tokens_, 0, 10).status)); }

  v1::AttendRequest Waiting(std::int64_t position) const {
    v1::AttendRequest request = session_.AttendOf(kShape, queries_, 0, 1);
    request.set_min_position(position);
    request.set_wait(true);
    return request;
  }
  // Runs `end` while an Attend waits for position 11; returns how that ended.
  template <typename End>
  Reply<v1::AttendResponse> WhileWaiting(End end) {
    Reply<v1::AttendResponse> reply;
    const auto context = Context(20);
    std::thread waiting(
        [&] { reply.status = server_.stub().Attend(context.get(), Waiting(11), &reply.value); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    end(*context);
    waiting.join();
    return reply;
  }

  const TestSession session_{server_.stub(), "s", ConfigOf({ExactGroup(kShape)})};
};

TEST_F(MinPosition, NotReachedFailsAtOnceWithThePosition) {
  v1::AttendRequest request = Waiting(11);
  request.set_wait(false);
  const grpc::Status status = session_.Attend(request).status;
  EXPECT_TRUE(FailedWith(status, StatusCode::FAILED_PRECONDITION, v1::POSITION_NOT_REACHED));
  EXPECT_EQ(MetadataOf(status)["layer"], "0");
  EXPECT_EQ(MetadataOf(status)["position"], "10");
  request.set_min_position(10);
  EXPECT_EQ(session_.Attend(request)->position(), 10);
}

TEST_F(MinPosition, AWaitEndsWhenTheTokensCome) {
  const Reply<v1::AttendResponse> reply = WhileWaiting([this](grpc::ClientContext&) {
    EXPECT_TRUE(Succeeded(session_.Append(tokens_, 10, 5).status));
  });
  ASSERT_TRUE(Succeeded(reply.status));
  EXPECT_EQ(reply->position(), 15);
}

TEST_F(MinPosition, AWaitEndsWithTheSession) {
  const Reply<v1::AttendResponse> reply =
      WhileWaiting([this](grpc::ClientContext&) { EXPECT_TRUE(Succeeded(session_.Delete())); });
  EXPECT_TRUE(FailedWith(reply.status, StatusCode::NOT_FOUND, v1::DELETED));
}

TEST_F(MinPosition, AWaitEndsWithTheServersDrain) {
  const Reply<v1::AttendResponse> reply =
      WhileWaiting([this](grpc::ClientContext&) { server_.server().Drain(); });
  EXPECT_TRUE(FailedWith(reply.status, StatusCode::UNAVAILABLE, v1::SHUTTING_DOWN));
}

TEST_F(MinPosition, AWaitThatIsCancelledOrTimesOutHoldsNothing) {
  const Reply<v1::AttendResponse> reply =
      WhileWaiting([](grpc::ClientContext& context) { context.TryCancel(); });
  EXPECT_EQ(reply.status.error_code(), StatusCode::CANCELLED);
  v1::AttendResponse response;
  EXPECT_EQ(server_.stub().Attend(Context(1).get(), Waiting(11), &response).error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  // The server drains at once if it holds no request any more.
  const auto start = std::chrono::steady_clock::now();
  server_.server().Drain();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST_F(MinPosition, ManyWaitsAtManyPositionsAllEnd) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (std::int64_t i = 0; i < 24; ++i) {
    threads.emplace_back([&, i] {
      const Reply<v1::AttendResponse> reply = session_.Attend(Waiting(10 + 8 * i));
      if (reply.status.ok() && reply->position() >= 10 + 8 * i) ++right;
    });
  }
  for (std::int64_t i = 10; i < 300; i += 10) {
    ASSERT_TRUE(Succeeded(session_.Append(tokens_, i, 10).status));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 24);
}

}  // namespace
}  // namespace attnd::e2e
