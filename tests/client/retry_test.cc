#include "client/retry.h"

#include <gtest/gtest.h>

#include "client/error.h"
#include "tests/client/fake_clock.h"
#include "tests/client/fake_error.h"

namespace attnd::client {
namespace {

class Retry : public ::testing::Test {
 protected:
  // Runs attempts that end with `outcomes`, the last one repeated.
  absl::Status Run(std::vector<absl::Status> outcomes, absl::Duration timeout = absl::Minutes(10)) {
    attempts_ = 0;
    return RunWithRetries(
        policy_, clock_.Now() + timeout, clock_, [this] { return uniform_; },
        [&](absl::Duration time) {
          last_time_ = time;
          const auto index = std::min(attempts_++, outcomes.size() - 1);
          return outcomes[index];
        });
  }

  RetryPolicy policy_;
  FakeClock clock_;
  double uniform_ = 1.0;
  std::size_t attempts_ = 0;
  absl::Duration last_time_;
};

TEST_F(Retry, BacksOffExponentiallyUpToABound) {
  policy_.max_attempts = 10;
  EXPECT_FALSE(Run({absl::UnavailableError("down")}).ok());
  EXPECT_EQ(attempts_, 10U);
  std::vector<absl::Duration> expected;
  for (const int ms : {50, 100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    expected.push_back(absl::Milliseconds(ms));
  }
  EXPECT_EQ(clock_.sleeps(), expected);
}

TEST_F(Retry, JitterHalvesAtMost) {
  uniform_ = 0.0;
  EXPECT_TRUE(Run({absl::UnavailableError("down"), absl::OkStatus()}).ok());
  EXPECT_EQ(clock_.sleeps(), std::vector<absl::Duration>{absl::Milliseconds(25)});
}

TEST_F(Retry, WaitsAsLongAsTheServerAsks) {
  const auto busy =
      FromGrpc(FakeError(grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL", "busy", {}, 700));
  EXPECT_TRUE(Run({busy, absl::OkStatus()}).ok());
  EXPECT_EQ(clock_.sleeps(), std::vector<absl::Duration>{absl::Milliseconds(700)});
}

TEST_F(Retry, AStoreThatFailsForNowIsTriedAgain) {
  const auto store =
      FromGrpc(FakeError(grpc::StatusCode::UNAVAILABLE, "STORE_UNAVAILABLE", "full", {}, 900));
  EXPECT_TRUE(Run({store, absl::OkStatus()}).ok());
  EXPECT_EQ(clock_.sleeps(), std::vector<absl::Duration>{absl::Milliseconds(900)});
  EXPECT_FALSE(
      Run({FromGrpc(FakeError(grpc::StatusCode::DATA_LOSS, "DAMAGED", "bad record"))}).ok());
  EXPECT_EQ(attempts_, 1U);
}

TEST_F(Retry, ALimitThatDoesNotPassIsNotRetried) {
  EXPECT_FALSE(
      Run({FromGrpc(FakeError(grpc::StatusCode::RESOURCE_EXHAUSTED, "STATE_BYTES", "full"))}).ok());
  EXPECT_EQ(attempts_, 1U);
}

TEST_F(Retry, ErrorsOfTheCallerSurfaceAtOnce) {
  for (const auto code :
       {absl::StatusCode::kAborted, absl::StatusCode::kNotFound, absl::StatusCode::kOutOfRange,
        absl::StatusCode::kInvalidArgument, absl::StatusCode::kFailedPrecondition,
        absl::StatusCode::kInternal, absl::StatusCode::kCancelled, absl::StatusCode::kDataLoss}) {
    EXPECT_EQ(Run({absl::Status(code, "no")}).message(), "no");
    EXPECT_EQ(attempts_, 1U);
  }
}

TEST_F(Retry, NeverSleepsPastTheDeadline) {
  const absl::Time begin = clock_.Now();
  const absl::Status status = Run({absl::UnavailableError("down")}, absl::Milliseconds(200));
  EXPECT_EQ(attempts_, 3U);  // at 0, 50 and 150 ms; the next would be at 350
  EXPECT_EQ(status.message(), "down (after 3 attempts)");
  EXPECT_LT(clock_.Now() - begin, absl::Milliseconds(200));
}

TEST_F(Retry, AnAttemptGetsNoMoreTimeThanIsLeft) {
  policy_.attempt_timeout = absl::Seconds(30);
  EXPECT_TRUE(Run({absl::OkStatus()}, absl::Seconds(5)).ok());
  EXPECT_EQ(last_time_, absl::Seconds(5));
  EXPECT_TRUE(Run({absl::OkStatus()}, absl::Seconds(500)).ok());
  EXPECT_EQ(last_time_, absl::Seconds(30));
}

TEST_F(Retry, ACallThatNeedsLongerThanAnAttemptNeverSucceeded) {
  policy_.max_attempts = 2;
  policy_.attempt_timeout = absl::Seconds(30);
  std::vector<absl::Duration> granted;
  const absl::Status status = RunWithRetries(
      policy_, clock_.Now() + absl::Minutes(20), clock_, [] { return 1.0; },
      [&](absl::Duration time) -> absl::Status {
        granted.push_back(time);
        const absl::Duration needed = absl::Seconds(200);
        clock_.Sleep(std::min(time, needed));
        return time < needed ? absl::DeadlineExceededError("slow") : absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(granted, (std::vector<absl::Duration>{absl::Seconds(30), absl::Seconds(60),
                                                  absl::Seconds(120), absl::Seconds(240)}));
}

TEST_F(Retry, AttemptsThatRunOutOfTimeGaveUpLongBeforeTheDeadline) {
  policy_.max_attempts = 3;
  const absl::Time begin = clock_.Now();
  const absl::Time deadline = begin + absl::Minutes(10);
  int attempts = 0;
  const absl::Status status = RunWithRetries(
      policy_, deadline, clock_, [] { return 1.0; },
      [&](absl::Duration time) {
        ++attempts;
        clock_.Sleep(time);
        return absl::DeadlineExceededError("no answer");
      });
  EXPECT_EQ(status.message(), "no answer (after 5 attempts)");  // 30, 60, 120, 240 s and the rest
  EXPECT_EQ(attempts, 5);
  EXPECT_EQ(clock_.Now(), deadline);
}

TEST_F(Retry, OtherFailuresStillCount) {
  policy_.max_attempts = 2;
  EXPECT_EQ(Run({absl::DeadlineExceededError("slow"), absl::UnavailableError("down")}).message(),
            "down (after 3 attempts)");
}

TEST_F(Retry, TheOnlyAttemptGetsAllTheTime) {
  policy_.max_attempts = 1;
  EXPECT_EQ(Run({absl::DeadlineExceededError("slow")}, absl::Seconds(500)).message(), "slow");
  EXPECT_EQ(attempts_, 1U);
  EXPECT_EQ(last_time_, absl::Seconds(500));
}

}  // namespace
}  // namespace attnd::client
