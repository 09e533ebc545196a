// One session: the lane of its mutations, waits for positions, its life, and what it accounts for.
#include "server/session.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/session_fixture.h"

namespace attnd::server {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

absl::Status Deleted() { return Error(v1::DELETED, "session s was deleted"); }

// Several workers, so that an order that holds is the lane's doing.
class SessionLane : public SessionFixture {
 protected:
  SessionLane() : SessionFixture(4) {}

  // A mutation of `quanta` quanta that leaves the lane at its end.
  class Mutating final : public Job {
   public:
    Mutating(Session& session, int quanta, std::function<void(int)> each)
        : session_(session), quanta_(quanta), each_(std::move(each)) {}
    Next Advance(engine::Scratch& /*scratch*/) override {
      each_(done_);
      if (++done_ < quanta_) return Next::kAdvance;
      session_.LeaveLane();
      return Next::kEnd;
    }

   private:
    Session& session_;
    const int quanta_;
    const std::function<void(int)> each_;
    int done_ = 0;
  };

  void Enter(Session& session, int quanta, std::function<void(int)> each,
             Session::Place place = Session::Place::kWorker) {
    session.EnterLane(std::make_unique<Mutating>(session, quanta, std::move(each)), place);
  }
};

TEST_F(SessionLane, MutationsRunOneAtATimeInTheOrderOfEntry) {
  const auto session = MakeSession();
  std::atomic<int> inside{0};
  std::atomic<int> overlaps{0};
  std::vector<int> order;  // unguarded: the lane orders the jobs
  for (int i = 0; i < 40; ++i) {
    Enter(*session, 1 + i % 3, [&, i](int quantum) {
      if (inside.fetch_add(1) != 0) ++overlaps;
      if (quantum == 0) order.push_back(i);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      --inside;
    });
  }
  scheduler_.Stop();
  EXPECT_EQ(overlaps, 0);
  ASSERT_EQ(order.size(), 40U);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_F(SessionLane, SessionsDoNotWaitForEachOther) {
  const auto one = MakeSession();
  const auto other = MakeSession();
  std::atomic<bool> met{false};
  Enter(*one, 1, [&](int) {
    for (int i = 0; i < 10'000 && !met; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::atomic<bool> in_time{false};
  Enter(*other, 1, [&](int) { met = true; });
  Enter(*one, 1, [&](int) { in_time = met.load(); });
  scheduler_.Stop();
  EXPECT_TRUE(in_time);
}

TEST_F(SessionLane, AShortMutationRunsOnTheCallingThreadUnlessTheLaneIsTaken) {
  const auto session = MakeSession();
  std::thread::id ran;
  const auto note = [&](int) { ran = std::this_thread::get_id(); };
  Enter(*session, 2, note, Session::Place::kHereIfIdle);
  EXPECT_EQ(ran, std::this_thread::get_id());

  std::atomic<bool> open{false};
  Enter(*session, 1, [&](int) {
    while (!open) std::this_thread::yield();
  });
  ran = {};
  Enter(*session, 1, note, Session::Place::kHereIfIdle);
  EXPECT_EQ(ran, std::thread::id()) << "it waits in the lane";
  open = true;
  scheduler_.Stop();
  EXPECT_NE(ran, std::this_thread::get_id());
  EXPECT_NE(ran, std::thread::id());
}

TEST_F(SessionLane, ACloseDuringAMutationLetsNothingBePublished) {
  const auto session = MakeSession();
  const std::int64_t used = budget_.used();
  std::vector<absl::Status> published;
  // The first is under way when the session is closed, the second waits for the lane.
  for (int i = 0; i < 2; ++i) {
    Enter(*session, 2, [&, i](int quantum) {
      if (i == 0 && quantum == 0) session->Close(Deleted());
      if (quantum == 0) return;
      engine::Message message = MessageOf(engine::MessageKind::kAppend, {0, 0, 5}, 1);
      published.push_back(
          session->Publish({{0, Grown(*session, 0, 5)}}, message, nullptr).status());
      EXPECT_EQ(
          ReasonOf(session->ClassifyRetry(MessageOf(engine::MessageKind::kAppend, {0, 3, 5}, 1))),
          v1::WRONG_POSITION)
          << "nor remembered";
    });
  }
  scheduler_.Stop();
  ASSERT_EQ(published.size(), 2U) << "the lane goes on, so that every message is answered";
  for (const absl::Status& status : published) EXPECT_EQ(ReasonOf(status), v1::DELETED);
  EXPECT_EQ(session->position(0), 0);
  EXPECT_EQ(budget_.used(), used);
}

class SessionPublish : public SessionFixture {};

TEST_F(SessionPublish, LayersOfAMessageChangeTogetherAndReadersKeepWhatTheyTook) {
  const auto session = MakeSession();
  const LayerStatePtr before = session->layer(0);
  engine::Message message;
  message.spans = {{0, 0, 3}, {2, 0, 70}};
  ASSERT_TRUE(
      session->Publish({{0, Grown(*session, 0, 3)}, {2, Grown(*session, 2, 70)}}, message, nullptr)
          .ok());
  EXPECT_EQ(session->position(0), 3);
  EXPECT_EQ(session->position(1), 0);
  EXPECT_EQ(session->position(2), 70);
  EXPECT_EQ(before->position(), 0);
  const v1::Session described = session->Describe();
  EXPECT_EQ(described.position(), 0) << "the smallest";
  EXPECT_EQ(std::vector<std::int64_t>(described.layer_positions().begin(),
                                      described.layer_positions().end()),
            (std::vector<std::int64_t>{3, 0, 70, 0}));
  EXPECT_EQ(
      session->PositionMetadata(),
      (ErrorMetadata{
          {"position.0", "3"}, {"position.1", "0"}, {"position.2", "70"}, {"position.3", "0"}}));
}

TEST_F(SessionPublish, BytesAreThoseOfTheLayersTheLogAndTheKeptAnswers) {
  auto session = MakeSession();
  const std::int64_t initial = Session::initial_bytes(Plan());
  EXPECT_EQ(session->state_bytes(), initial);
  EXPECT_EQ(budget_.used(), initial);

  constexpr std::int64_t kMessage = sizeof(engine::Message) + sizeof(engine::TokenSpan);
  Publish(*session, 0, 200, 1);
  const std::int64_t layer = session->layer(0)->bytes();
  EXPECT_GT(layer, 200 * 2 * kDim * 4);
  const std::int64_t appended = initial - session->engine(0).fixed_bytes() + layer + kMessage;
  EXPECT_EQ(session->state_bytes(), appended);
  EXPECT_EQ(budget_.used(), appended);
  EXPECT_EQ(session->Describe().state_bytes(), appended);

  const auto answer = std::make_shared<v1::StepResponse>();
  answer->mutable_answer()->set_flags(std::string(5000, 'x'));
  Publish(*session, 1, 1, 2, answer);
  const std::int64_t stepped = appended + kMessage - session->engine(1).fixed_bytes() +
                               session->layer(1)->bytes() +
                               static_cast<std::int64_t>(answer->SpaceUsedLong());
  EXPECT_EQ(budget_.used(), stepped);
  // The next message of the layer takes the answer's place.
  Publish(*session, 1, 1, 3);
  EXPECT_EQ(budget_.used(),
            stepped + kMessage - static_cast<std::int64_t>(answer->SpaceUsedLong()));

  session = nullptr;
  EXPECT_EQ(budget_.used(), 0);
}

// A queued Attend keeps the state it was asked about; its memory was counted by nobody.
TEST_F(SessionPublish, WhatAReaderAloneKeepsIsCountedUntilItLetsGo) {
  v1::SessionConfig config;
  for (const std::int64_t window : {256, 0}) {
    v1::LayerGroup& group = *config.add_layer_groups();
    group.set_key_dim(kDim);
    group.set_window_tokens(window);
    if (window > 0) {
      group.mutable_exact();
    } else {
      group.mutable_linear()->mutable_feature_map()->set_kind(v1::ELU_PLUS_ONE);
    }
  }
  SessionPlan plan = *PlanSession(config, options_);
  ASSERT_TRUE(budget_.Reserve(Session::initial_bytes(plan)).ok());
  const auto session =
      std::make_shared<Session>(SessionKey{Session::kDefaultTenant, "w"}, std::move(plan),
                                SessionBirth{7, 7, absl::Now()}, 1, clock_, scheduler_, budget_);
  for (const std::int64_t layer : {0, 1}) {
    Publish(*session, layer, 1024, 1);
    const engine::Engine& engine = session->engine(layer);
    const std::int64_t moved = layer == 0 ? 512 * engine.bytes_per_token() : 0;
    const std::int64_t copied = layer == 0 ? 0 : engine.fixed_bytes();
    LayerStatePtr first = session->layer(layer);
    Publish(*session, layer, 512, 2);
    const std::int64_t kept = moved + copied;
    const std::int64_t with_first = budget_.used();
    // A second reader of a later state adds what that state keeps alone.
    LayerStatePtr second = session->layer(layer);
    Publish(*session, layer, 512, 3);
    const std::int64_t with_both = budget_.used();
    EXPECT_GE(with_both - with_first, kept);
    first = nullptr;
    session->StateReleased();
    EXPECT_EQ(budget_.used(), with_both - kept) << "the second keeps its own part";
    second = nullptr;
    session->StateReleased();
    EXPECT_EQ(budget_.used(), with_both - 2 * kept);
    EXPECT_GT(kept, 0);
  }
}

TEST_F(SessionPublish, RememberedMessagesStopGrowing) {
  const auto session = MakeSession();
  Publish(*session, 0, 1, 0);
  const std::int64_t one = session->state_bytes();
  // All of them lie in the open block, which is held in full from the first token on.
  for (std::uint64_t i = 1; i < 60; ++i) Publish(*session, 0, 1, i);
  const std::int64_t sixty = session->state_bytes();
  EXPECT_GT(sixty, one);
  for (int layer = 1; layer < 3; ++layer) {
    for (std::uint64_t i = 0; i < 60; ++i) Publish(*session, layer, 1, i);
  }
  const std::int64_t full = session->state_bytes();
  Publish(*session, 0, 1, 100);
  EXPECT_EQ(session->state_bytes(), full) << "one came, one went";
}

class SessionWait : public SessionFixture {
 protected:
  // A callback that notes what it was called with.
  std::function<void(const absl::Status&)> Note(const std::string& name) {
    return [this, name](const absl::Status& status) {
      ended_.emplace_back(name, status.ok() ? v1::ERROR_REASON_UNSPECIFIED : ReasonOf(status));
    };
  }
  using Ended = std::vector<std::pair<std::string, v1::ErrorReason>>;
  Ended ended_;
};

TEST_F(SessionWait, EndsAtItsPositionOfItsLayer) {
  const auto session = MakeSession();
  Publish(*session, 0, 10, 1);
  EXPECT_EQ(session->WhenPosition(0, 10, Note("reached")), 0U);
  EXPECT_EQ(ended_, (Ended{{"reached", v1::ERROR_REASON_UNSPECIFIED}}));
  const Session::WaitId eleven = session->WhenPosition(0, 11, Note("11"));
  const Session::WaitId twelve = session->WhenPosition(0, 12, Note("12"));
  const Session::WaitId other = session->WhenPosition(1, 1, Note("other layer"));
  EXPECT_NE(eleven, 0U);
  EXPECT_NE(eleven, twelve);
  EXPECT_NE(other, 0U);
  ended_.clear();
  Publish(*session, 0, 1, 2);
  EXPECT_EQ(ended_, (Ended{{"11", v1::ERROR_REASON_UNSPECIFIED}}));
  Publish(*session, 0, 100, 3);
  Publish(*session, 0, 1, 4);
  EXPECT_EQ(ended_,
            (Ended{{"11", v1::ERROR_REASON_UNSPECIFIED}, {"12", v1::ERROR_REASON_UNSPECIFIED}}));
  EXPECT_FALSE(session->CancelWait(twelve)) << "it has ended";
  EXPECT_TRUE(session->CancelWait(other));
}

TEST_F(SessionWait, ACancelledWaitIsNotCalled) {
  const auto session = MakeSession();
  const Session::WaitId wait = session->WhenPosition(0, 1, Note("cancelled"));
  session->WhenPosition(0, 1, Note("kept"));
  EXPECT_TRUE(session->CancelWait(wait));
  EXPECT_FALSE(session->CancelWait(wait));
  EXPECT_FALSE(session->CancelWait(0));
  Publish(*session, 0, 1, 1);
  session->EndWaits(Deleted());
  EXPECT_EQ(ended_, (Ended{{"kept", v1::ERROR_REASON_UNSPECIFIED}}));
}

TEST_F(SessionWait, EndWaitsEndsThoseThatAreThereOnly) {
  const auto session = MakeSession();
  const Session::WaitId wait = session->WhenPosition(0, 5, Note("a"));
  session->WhenPosition(2, 1, Note("b"));
  session->EndWaits(
      RetryableError(v1::SHUTTING_DOWN, "the server is shutting down", absl::Seconds(1)));
  EXPECT_EQ(ended_, (Ended{{"a", v1::SHUTTING_DOWN}, {"b", v1::SHUTTING_DOWN}}));
  EXPECT_FALSE(session->CancelWait(wait));
  // The session lives on.
  EXPECT_NE(session->WhenPosition(0, 5, Note("c")), 0U);
  Publish(*session, 0, 5, 1);
  EXPECT_EQ(ended_.back(), std::make_pair(std::string("c"), v1::ERROR_REASON_UNSPECIFIED));
}

TEST_F(SessionWait, CloseEndsWaitsAndLaterOnesAtOnce) {
  const auto session = MakeSession();
  Publish(*session, 0, 5, 1);
  session->WhenPosition(0, 6, Note("before"));
  session->Close(Deleted());
  EXPECT_EQ(session->WhenPosition(0, 6, Note("after")), 0U);
  EXPECT_EQ(session->WhenPosition(0, 5, Note("reached")), 0U);
  EXPECT_EQ(ended_,
            (Ended{{"before", v1::DELETED}, {"after", v1::DELETED}, {"reached", v1::DELETED}}));
}

TEST_F(SessionWait, ACallbackMayUseTheSession) {
  const auto session = MakeSession();
  Session::WaitId second = 0;
  bool cancelled = false;
  std::int64_t seen = 0;
  session->WhenPosition(0, 1, [&](const absl::Status&) {
    cancelled = session->CancelWait(second);
    seen = session->position(0);
    session->WhenPosition(0, 3, Note("nested"));
  });
  second = session->WhenPosition(0, 2, Note("second"));
  Publish(*session, 0, 1, 1);
  EXPECT_TRUE(cancelled);
  EXPECT_EQ(seen, 1) << "the state was published before";
  Publish(*session, 0, 2, 2);
  EXPECT_EQ(ended_, (Ended{{"nested", v1::ERROR_REASON_UNSPECIFIED}}));
}

class SessionLife : public SessionFixture {
 protected:
  // Seconds until the session expires.
  double Left(const Session& session) const {
    return static_cast<double>(session.ExpiryNanos() - clock_.MonotonicNanos()) / kSecond;
  }
};

TEST_F(SessionLife, ExpiresItsTimeToLiveAfterTheLastUse) {
  const auto session = MakeSession(absl::Seconds(60) + absl::Milliseconds(500));
  EXPECT_EQ(Left(*session), 60.5);
  clock_.Advance(absl::Seconds(50));
  EXPECT_EQ(Left(*session), 10.5);
  EXPECT_EQ(session->Describe().expires_in().seconds(), 10);
  EXPECT_EQ(session->Describe().expires_in().nanos(), 500'000'000);
  { const Session::Use use(*session); }
  EXPECT_EQ(Left(*session), 60.5);
  clock_.Advance(absl::Seconds(100));
  EXPECT_EQ(Left(*session), -39.5) << "nobody is told a negative time, but the table sees it";
  EXPECT_EQ(session->Describe().expires_in().seconds(), 0);
  EXPECT_EQ(session->Describe().expires_in().nanos(), 0);
}

TEST_F(SessionLife, DoesNotRunOutWhileAnyCallUsesIt) {
  const auto session = MakeSession();
  auto one = std::make_unique<Session::Use>(*session);
  auto other = std::make_unique<Session::Use>(*session);
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(Left(*session), 60);
  one = nullptr;
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(Left(*session), 60);
  other = nullptr;
  EXPECT_EQ(Left(*session), 60) << "counted from the end of the last use";
  clock_.Advance(absl::Seconds(59));
  EXPECT_EQ(Left(*session), 1);
}

TEST_F(SessionLife, AnUpdateChangesTheTimeToLiveOrTheLabels) {
  const auto session = MakeSession();
  const absl::Duration longer = absl::Hours(300);
  session->Update(&longer, nullptr);
  EXPECT_EQ(Left(*session), 300 * 3600);
  EXPECT_EQ(session->Describe().config().time_to_live().seconds(), 300 * 3600);
  google::protobuf::Map<std::string, std::string> labels;
  labels["a"] = "1";
  session->Update(nullptr, &labels);
  EXPECT_EQ(Left(*session), 300 * 3600);
  EXPECT_TRUE(session->HasLabels(labels));
  labels["b"] = "2";
  EXPECT_FALSE(session->HasLabels(labels));
}

TEST_F(SessionLife, AJumpOfTheWallClockChangesNothing) {
  const auto session = MakeSession();
  clock_.JumpWall(absl::Hours(1000));
  EXPECT_EQ(Left(*session), 60);
}

}  // namespace
}  // namespace attnd::server
