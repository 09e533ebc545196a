// A session without a table or gRPC, on a clock that tests move, and layer states to publish in it.
#ifndef ATTND_TESTS_SERVER_SESSION_FIXTURE_H_
#define ATTND_TESTS_SERVER_SESSION_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/layer_stream.h"
#include "engine/scratch.h"
#include "gtest/gtest.h"
#include "server/proto_time.h"
#include "server/session.h"
#include "server/session_config.h"
#include "tests/server/fake_clock.h"

namespace attnd::server {

class SessionFixture : public ::testing::Test {
 protected:
  static constexpr std::int32_t kDim = 4;

  explicit SessionFixture(int workers = 1) : scheduler_(workers, clock_) {}
  // Jobs that a failed test has left behind must not outlive what they refer to.
  ~SessionFixture() override { scheduler_.Stop(); }

  // Two exact layers, then one linear one and one of kde.
  SessionPlan Plan(absl::Duration time_to_live = absl::Seconds(60)) const {
    v1::SessionConfig config;
    v1::LayerGroup& exact = *config.add_layer_groups();
    exact.set_count(2);
    exact.set_key_dim(kDim);
    exact.mutable_exact();
    v1::LayerGroup& linear = *config.add_layer_groups();
    linear.set_key_dim(kDim);
    linear.mutable_linear()->mutable_feature_map()->set_kind(v1::ELU_PLUS_ONE);
    v1::LayerGroup& kde = *config.add_layer_groups();
    kde.set_key_dim(kDim);
    kde.mutable_kde();
    *config.mutable_time_to_live() = ToProto(time_to_live);
    auto plan = PlanSession(config, options_);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  std::shared_ptr<Session> MakeSession(absl::Duration time_to_live = absl::Seconds(60)) {
    SessionPlan plan = Plan(time_to_live);
    EXPECT_TRUE(budget_.Reserve(Session::initial_bytes(plan)).ok());
    return std::make_shared<Session>(SessionKey{Session::kDefaultTenant, "s"}, std::move(plan),
                                     SessionBirth{7, 7, absl::Now()}, 1, clock_, scheduler_,
                                     budget_);
  }

  // The layer's published state and `count` tokens more.
  static LayerStatePtr Grown(const Session& session, std::int64_t layer, std::int64_t count) {
    const std::vector<float> ones(static_cast<std::size_t>(count * kDim), 1.0F);
    const engine::ConstElements rows = {engine::DataType::kF32, ones.data(), count * kDim};
    engine::LayerDraft draft(session.engine(layer), session.layer(layer));
    engine::Scratch scratch;
    EXPECT_TRUE(draft.Append({count, rows, rows, nullptr}, 0, count, nullptr, scratch).ok());
    return draft.Finish();
  }

  // A message of one layer whose content is `content`.
  static engine::Message MessageOf(engine::MessageKind kind, const engine::TokenSpan& span,
                                   std::uint64_t content) {
    return {kind, {span}, {content, 0}};
  }

  // Publishes `count` tokens as an Append, or as a Step with this answer; returns the message.
  static engine::Message Publish(Session& session, std::int64_t layer, std::int64_t count,
                                 std::uint64_t content,
                                 const std::shared_ptr<const v1::StepResponse>& answer = nullptr) {
    const auto kind = answer ? engine::MessageKind::kStep : engine::MessageKind::kAppend;
    engine::Message message = MessageOf(kind, {layer, session.position(layer), count}, content);
    EXPECT_TRUE(session.Publish({{layer, Grown(session, layer, count)}}, message, answer).ok());
    return message;
  }

  const Options options_;
  FakeClock clock_;
  StateBudget budget_{std::int64_t{1} << 30};
  Scheduler scheduler_;
};

}  // namespace attnd::server

#endif  // ATTND_TESTS_SERVER_SESSION_FIXTURE_H_
