// The session table on a clock that tests move: creation, expiry, tombstones, listing.
#include "server/session_table.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/error.h"
#include "server/metrics.h"
#include "server/proto_time.h"
#include "server/server_info.h"
#include "server/session_config.h"
#include "tests/server/fake_clock.h"

namespace attnd::server {
namespace {

using Labels = google::protobuf::Map<std::string, std::string>;

class SessionTableTest : public ::testing::Test {
 protected:
  static Options MakeOptions() {
    Options options;
    options.max_tombstones = 5;
    options.tombstone_retention = absl::Hours(2);
    options.max_sessions = 10;
    return options;
  }
  SessionPlan Plan(absl::Duration time_to_live = absl::Seconds(60), std::uint64_t seed = 0) const {
    v1::SessionConfig config;
    v1::LayerGroup& group = *config.add_layer_groups();
    group.set_key_dim(4);
    group.mutable_exact();
    config.set_seed(seed);
    *config.mutable_time_to_live() = ToProto(time_to_live);
    auto plan = PlanSession(config, options_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }
  static SessionKey Key(const std::string& id) { return {Session::kDefaultTenant, id}; }
  SessionPtr Create(const std::string& id, absl::Duration time_to_live = absl::Seconds(60)) {
    auto session = table_.Create(Key(id), Plan(time_to_live));
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *session : nullptr;
  }
  v1::ErrorReason ReasonOfFind(const std::string& id) {
    return ReasonOf(table_.Find(Key(id)).status());
  }

  const Options options_ = MakeOptions();
  FakeClock clock_;
  Metrics metrics_{MakeBuildInfo()};
  StateBudget budget_{1 << 20};
  Scheduler scheduler_{1, clock_};
  std::uint64_t random_ = 0;
  SessionTable table_{options_, clock_,   scheduler_,
                      budget_,  metrics_, [this] { return random_++; }};
};

TEST_F(SessionTableTest, AGenerationIsNeverZero) {
  EXPECT_NE(Create("a")->generation(), 0U) << "the first random number is 0";
}

TEST_F(SessionTableTest, AnIdleSessionExpiresAndSaysSo) {
  Create("a");
  clock_.Advance(absl::Seconds(59));
  EXPECT_TRUE(table_.Find(Key("a")).ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ReasonOfFind("a"), v1::EXPIRED) << "also when nobody has looked for it meanwhile";
  EXPECT_EQ(table_.size(), 0);
  EXPECT_EQ(budget_.used(), 0);
  EXPECT_TRUE(table_.Delete(Key("a")).ok());
  EXPECT_EQ(ReasonOf(table_.Delete(Key("b"))), v1::UNKNOWN);
}

TEST_F(SessionTableTest, UseRestartsTheTimeToLive) {
  const SessionPtr session = Create("a");
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(absl::Seconds(50));
    const Session::Use use(*session);
  }
  EXPECT_EQ(table_.ExpireIdle(), clock_.MonotonicNanos() + 60'000'000'000);
  EXPECT_TRUE(table_.Find(Key("a")).ok());
}

TEST_F(SessionTableTest, ASessionInUseDoesNotExpire) {
  const SessionPtr session = Create("a");
  {
    const Session::Use use(*session);
    clock_.Advance(absl::Hours(10));
    EXPECT_GT(table_.ExpireIdle(), clock_.MonotonicNanos());
    EXPECT_TRUE(table_.Find(Key("a")).ok());
  }
  clock_.Advance(absl::Seconds(59));
  EXPECT_TRUE(table_.Find(Key("a")).ok());
  clock_.Advance(absl::Seconds(1));
  table_.ExpireIdle();
  EXPECT_EQ(table_.size(), 0);
}

// A client that prolongs a session has used it: a shorter time-to-live must not end it at once.
TEST_F(SessionTableTest, AnUpdateAndARetriedCreateAreUses) {
  Create("a");
  clock_.Advance(absl::Seconds(50));
  const absl::Duration shorter = absl::Seconds(20);
  ASSERT_TRUE(table_.Update(Key("a"), &shorter, nullptr).ok());
  EXPECT_TRUE(table_.Find(Key("a")).ok());
  clock_.Advance(absl::Seconds(19));
  Create("a");
  clock_.Advance(absl::Seconds(19));
  EXPECT_TRUE(table_.Find(Key("a")).ok());
  clock_.Advance(absl::Seconds(1));
  EXPECT_EQ(ReasonOfFind("a"), v1::EXPIRED);
}

TEST_F(SessionTableTest, TheReaperIsToldTheNextExpiryOnly) {
  EXPECT_EQ(table_.ExpireIdle(), std::numeric_limits<std::int64_t>::max());
  Create("late", absl::Seconds(100));
  Create("soon", absl::Seconds(10));
  const std::int64_t start = clock_.MonotonicNanos();
  EXPECT_EQ(table_.ExpireIdle(), start + 10'000'000'000);
  EXPECT_EQ(table_.ExpireIdle(), start + 10'000'000'000);
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(table_.ExpireIdle(), start + 100'000'000'000);
  EXPECT_EQ(table_.size(), 1);
  const absl::Duration shorter = absl::Seconds(1);
  ASSERT_TRUE(table_.Update(Key("late"), &shorter, nullptr).ok());
  EXPECT_LE(table_.ExpireIdle(), clock_.MonotonicNanos() + 1'000'000'000);
}

TEST_F(SessionTableTest, AnExpiredIdCanBeUsedAgain) {
  const std::uint64_t first = Create("a")->generation();
  clock_.Advance(absl::Seconds(61));
  const SessionPtr again = Create("a");
  EXPECT_NE(again->generation(), first);
  EXPECT_TRUE(table_.Find(Key("a")).ok());
  EXPECT_EQ(budget_.used(), Session::initial_bytes(Plan()));
}

TEST_F(SessionTableTest, TombstonesAreBoundedInNumberAndTime) {
  for (int i = 0; i < 8; ++i) {
    Create("s" + std::to_string(i));
    ASSERT_TRUE(table_.Delete(Key("s" + std::to_string(i))).ok());
    clock_.Advance(absl::Minutes(1));
  }
  EXPECT_EQ(ReasonOfFind("s2"), v1::UNKNOWN);
  EXPECT_EQ(ReasonOfFind("s3"), v1::DELETED);
  EXPECT_EQ(ReasonOfFind("s7"), v1::DELETED);
  clock_.Advance(absl::Minutes(116));
  EXPECT_EQ(ReasonOfFind("s3"), v1::UNKNOWN);
  EXPECT_EQ(ReasonOfFind("s7"), v1::DELETED);
}

TEST_F(SessionTableTest, ALaterLifeOfAnIdHasItsOwnTombstone) {
  Create("a");
  ASSERT_TRUE(table_.Delete(Key("a")).ok());
  clock_.Advance(absl::Minutes(119));
  Create("a");
  EXPECT_EQ(table_.Find(Key("a")).ok(), true);
  clock_.Advance(absl::Seconds(61));
  EXPECT_EQ(ReasonOfFind("a"), v1::EXPIRED);
  // The first life's tombstone runs out now, the second's does not.
  clock_.Advance(absl::Minutes(10));
  Create("b");
  ASSERT_TRUE(table_.Delete(Key("b")).ok());
  EXPECT_EQ(ReasonOfFind("a"), v1::EXPIRED);
}

TEST_F(SessionTableTest, SessionsOfAnotherTenantAreNotSeen) {
  Create("a");
  EXPECT_EQ(ReasonOf(table_.Find({"other", "a"}).status()), v1::UNKNOWN);
  EXPECT_TRUE(table_.List("other", "", 10, {}).sessions.empty());
  ASSERT_TRUE(table_.Create({"other", "a"}, Plan(absl::Seconds(60), 3)).ok());
  EXPECT_EQ(table_.List("other", "", 10, {}).sessions.size(), 1U);
  EXPECT_EQ(table_.List(Session::kDefaultTenant, "", 10, {}).sessions.size(), 1U);
}

TEST_F(SessionTableTest, AnExpiredSessionIsNotListed) {
  Create("a", absl::Seconds(10));
  Create("b");
  clock_.Advance(absl::Seconds(10));
  const std::vector<SessionPtr> listed =
      table_.List(Session::kDefaultTenant, "", 10, Labels()).sessions;
  ASSERT_EQ(listed.size(), 1U);
  EXPECT_EQ(listed[0]->key().id, "b");
}

TEST_F(SessionTableTest, AFullTableTakesNothingFromTheBudget) {
  for (int i = 0; i < 10; ++i) Create("s" + std::to_string(i));
  const std::int64_t used = budget_.used();
  EXPECT_EQ(ReasonOf(table_.Create(Key("x"), Plan()).status()), v1::TOO_MANY_SESSIONS);
  EXPECT_EQ(budget_.used(), used);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(table_.Delete(Key("s" + std::to_string(i))).ok());
  EXPECT_EQ(budget_.used(), 0);
}

TEST_F(SessionTableTest, ADeletedSessionLivesUntilItsLastUserLetsGo) {
  SessionPtr session = Create("a");
  ASSERT_TRUE(table_.Delete(Key("a")).ok());
  EXPECT_GT(budget_.used(), 0);
  EXPECT_EQ(session->position(0), 0);
  session = nullptr;
  EXPECT_EQ(budget_.used(), 0);
}

}  // namespace
}  // namespace attnd::server
