#include "client/duration.h"

#include <gtest/gtest.h>

#include "tests/client/session_fixture.h"

namespace attnd::client {
namespace {

class Durations : public SessionFixture {};

TEST_F(Durations, BecomeNanosecondsThatAClockCanAdd) {
  EXPECT_EQ(ToChrono(absl::Milliseconds(1500)), std::chrono::milliseconds(1500));
  EXPECT_EQ(ToChrono(-absl::Seconds(2)), std::chrono::seconds(-2));
  EXPECT_EQ(ToChrono(absl::InfiniteDuration()), std::chrono::hours(24 * 365));
  EXPECT_EQ(ToChrono(-absl::InfiniteDuration()), -std::chrono::hours(24 * 365));
}

TEST_F(Durations, BecomeProtosWithinTheirRange) {
  const auto proto = ToProto(absl::Milliseconds(-1500));
  EXPECT_EQ(proto.seconds(), -1);
  EXPECT_EQ(proto.nanos(), -500'000'000);
  const auto longest = ToProto(absl::InfiniteDuration());
  EXPECT_EQ(longest.seconds(), 315'576'000'000);
  EXPECT_EQ(longest.nanos(), 0);
}

TEST_F(Durations, AnInfiniteTimeoutOverflowedTheClock) {
  CreateSession();
  const TestTokens data(0, 3);
  const CallOptions forever = {.timeout = absl::InfiniteDuration()};
  EXPECT_TRUE(session_->Append(data.tokens(), forever).ok());
  AttendOptions attend;
  attend.call = forever;
  attend.wait = true;
  attend.min_position = 3;
  EXPECT_TRUE(session_->Attend(0, data.query_tensor(), attend).ok());
  StreamOptions options;
  options.send = forever;
  options.lifetime = absl::InfiniteDuration();
  const auto stream = session_->OpenStream(options);
  ASSERT_TRUE(stream.ok());
  EXPECT_TRUE(stream.value()->Append(data.tokens()).get().ok());
  EXPECT_TRUE(stream.value()->Finish().ok());
}

}  // namespace
}  // namespace attnd::client
