// Session configurations as clients send them: every field out of range is refused by name.
#include "server/session_config.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/error.h"

namespace attnd::server {
namespace {

v1::SessionConfig Exact() {
  v1::SessionConfig config;
  config.add_layer_groups()->mutable_exact();
  config.mutable_layer_groups(0)->set_key_dim(8);
  return config;
}

v1::SessionConfig Linear() {
  v1::SessionConfig config;
  config.add_layer_groups()->mutable_linear()->mutable_feature_map()->set_kind(v1::RELU);
  config.mutable_layer_groups(0)->set_key_dim(8);
  return config;
}

v1::SessionConfig Kde() {
  v1::SessionConfig config;
  config.add_layer_groups()->mutable_kde();
  config.mutable_layer_groups(0)->set_key_dim(16);
  return config;
}

TEST(SessionConfig, FieldsOutOfRangeAreRefusedByName) {
  using Config = v1::SessionConfig;
  struct Case {
    Config config;
    std::function<void(Config&)> break_it;
    v1::ErrorReason reason;
    const char* field;
  };
  const auto group = [](Config& c) { return c.mutable_layer_groups(0); };
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Case> cases = {
      {Exact(), [](Config& c) { c.clear_layer_groups(); }, v1::INVALID_FIELD, "layer_groups"},
      {Exact(), [&](Config& c) { group(c)->set_count(-1); }, v1::INVALID_FIELD, "count"},
      {Exact(), [&](Config& c) { group(c)->set_count(257); }, v1::INVALID_FIELD, "count"},
      {Exact(), [&](Config& c) { group(c)->set_key_dim(0); }, v1::INVALID_FIELD, "key_dim"},
      {Exact(), [&](Config& c) { group(c)->set_key_dim(1025); }, v1::INVALID_FIELD, "key_dim"},
      {Exact(), [&](Config& c) { group(c)->set_value_dim(-4); }, v1::INVALID_FIELD, "value_dim"},
      {Exact(), [&](Config& c) { group(c)->set_kv_heads(-1); }, v1::INVALID_FIELD, "kv_heads"},
      {Exact(), [&](Config& c) { group(c)->set_kv_heads(1 << 30); }, v1::INVALID_FIELD, "kv_heads"},
      {Exact(),
       [&](Config& c) {
         group(c)->set_kv_heads(2);
         group(c)->set_query_heads(3);
       },
       v1::INVALID_FIELD, "query_heads"},
      {Exact(), [&](Config& c) { group(c)->set_scale(kNan); }, v1::INVALID_FIELD, "scale"},
      {Exact(), [&](Config& c) { group(c)->set_scale(INFINITY); }, v1::INVALID_FIELD, "scale"},
      {Exact(), [&](Config& c) { group(c)->set_window_tokens(-1); }, v1::INVALID_FIELD,
       "window_tokens is -1"},
      {Exact(), [&](Config& c) { group(c)->set_window_tokens(std::int64_t{1} << 62); },
       v1::INVALID_FIELD, "268435456"},
      {Linear(), [&](Config& c) { group(c)->set_window_tokens(100); }, v1::INVALID_FIELD,
       "window_tokens is 100; it must be a multiple of 64"},
      {Exact(), [&](Config& c) { group(c)->clear_engine(); }, v1::INVALID_FIELD, "engine"},
      {Exact(), [&](Config& c) { group(c)->mutable_exact()->set_storage(v1::F16); },
       v1::INVALID_FIELD, "storage"},
      {Exact(),
       [&](Config& c) { group(c)->mutable_exact()->set_storage(static_cast<v1::DataType>(77)); },
       v1::INVALID_FIELD, "storage"},
      {Linear(), [&](Config& c) { group(c)->mutable_linear()->clear_feature_map(); },
       v1::UNSUPPORTED, "feature_map.kind"},
      {Linear(),
       [&](Config& c) {
         group(c)->mutable_linear()->mutable_feature_map()->set_kind(
             static_cast<v1::FeatureMapKind>(99));
       },
       v1::UNSUPPORTED, "feature_map.kind"},
      {Linear(),
       [&](Config& c) { group(c)->mutable_linear()->mutable_feature_map()->set_epsilon(-1); },
       v1::INVALID_FIELD, "epsilon"},
      {Linear(),
       [&](Config& c) { group(c)->mutable_linear()->mutable_feature_map()->set_epsilon(kNan); },
       v1::INVALID_FIELD, "epsilon"},
      {Linear(),
       [&](Config& c) {
         group(c)->mutable_linear()->mutable_feature_map()->set_kind(v1::ELU_PLUS_ONE);
         group(c)->mutable_linear()->mutable_feature_map()->set_epsilon(1);
       },
       v1::INVALID_FIELD, "epsilon"},
      {Linear(),
       [&](Config& c) {
         group(c)->mutable_linear()->mutable_feature_map()->set_kind(v1::IDENTITY);
       },
       v1::INVALID_FIELD, "layer_groups[0]"},
      {Linear(),
       [&](Config& c) {
         group(c)->mutable_linear()->mutable_feature_map()->set_kind(v1::EFFICIENT);
         group(c)->mutable_linear()->set_normalization(v1::UNNORMALIZED);
       },
       v1::INVALID_FIELD, "normalization"},
      {Linear(),
       [&](Config& c) {
         group(c)->mutable_linear()->mutable_feature_map()->set_kind(v1::EFFICIENT);
         group(c)->mutable_linear()->mutable_guard()->set_policy(v1::DenominatorGuard::CLAMP);
       },
       v1::INVALID_FIELD, "guard"},
      {Linear(),
       [&](Config& c) {
         group(c)->mutable_linear()->set_normalization(static_cast<v1::Normalization>(9));
       },
       v1::INVALID_FIELD, "normalization"},
      {Linear(),
       [&](Config& c) {
         group(c)->mutable_linear()->mutable_guard()->set_policy(
             static_cast<v1::DenominatorGuard::Policy>(9));
       },
       v1::INVALID_FIELD, "guard.policy"},
      {Linear(), [&](Config& c) { group(c)->mutable_linear()->mutable_guard()->set_epsilon(-1); },
       v1::INVALID_FIELD, "epsilon"},
      {Linear(), [&](Config& c) { group(c)->mutable_linear()->mutable_guard()->set_epsilon(kNan); },
       v1::INVALID_FIELD, "epsilon"},
      {Kde(), [&](Config& c) { group(c)->set_window_tokens(64); }, v1::INVALID_FIELD,
       "window_tokens is 64; it must be 0 for kde"},
      {Kde(),
       [&](Config& c) { group(c)->mutable_kde()->set_mode(static_cast<v1::KdeConfig::Mode>(9)); },
       v1::INVALID_FIELD,
       "layer_groups[0].kde.mode is 9; it must be AUTO, INDEX, CERTIFIED or PAPER"},
      {Kde(),
       [&](Config& c) { group(c)->mutable_kde()->mutable_accuracy()->set_target_error(kNan); },
       v1::INVALID_FIELD, "layer_groups[0].kde.accuracy.target_error is nan"},
      {Kde(), [&](Config& c) { group(c)->mutable_kde()->mutable_accuracy()->set_target_error(-1); },
       v1::INVALID_FIELD, "target_error is -1; it must be at least 0 and finite"},
      {Kde(), [&](Config& c) { group(c)->mutable_kde()->mutable_accuracy()->set_max_keys(-1); },
       v1::INVALID_FIELD, "layer_groups[0].kde.accuracy.max_keys is -1; it must be at least 0"},
      {Exact(), [](Config& c) { c.mutable_time_to_live(); }, v1::INVALID_FIELD, "time_to_live"},
      {Exact(),
       [](Config& c) {
         c.mutable_time_to_live()->set_seconds(std::numeric_limits<std::int64_t>::min());
       },
       v1::INVALID_FIELD, "time_to_live"},
      {Exact(), [](Config& c) { (*c.mutable_labels())[""] = "x"; }, v1::INVALID_FIELD, "labels"},
      {Exact(), [](Config& c) { (*c.mutable_labels())["x"] = std::string(256, 'v'); },
       v1::INVALID_FIELD, "labels"},
      {Exact(),
       [](Config& c) {
         for (int i = 0; i < 65; ++i) (*c.mutable_labels())[std::to_string(i)] = "";
       },
       v1::INVALID_FIELD, "labels"},
      {Exact(),
       [&](Config& c) {
         group(c)->set_count(200);
         *c.add_layer_groups() = *group(c);
       },
       v1::INVALID_FIELD, "layers"},
      {Exact(),
       [&](Config& c) {
         group(c)->set_count(256);
         group(c)->set_kv_heads(128);
       },
       v1::INVALID_FIELD, "query heads"},
      {Exact(),
       [&](Config& c) {
         for (int i = 0; i < 300; ++i) *c.add_layer_groups() = *group(c);
       },
       v1::INVALID_FIELD, "layer_groups"},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Config config = cases[i].config;
    ASSERT_TRUE(PlanSession(config, Options{}).ok()) << "case " << i;
    cases[i].break_it(config);
    const absl::Status status = PlanSession(config, Options{}).status();
    EXPECT_EQ(ReasonOf(status), cases[i].reason) << "case " << i << ": " << status;
    EXPECT_NE(std::string(status.message()).find(cases[i].field), std::string::npos)
        << "case " << i << ": " << status;
  }
}

TEST(SessionConfig, IdentityLeavesOutMutableFieldsAndDefaultsThatAreWrittenOut) {
  const Options options;
  const std::string identity = PlanSession(Exact(), options)->identity;
  v1::SessionConfig config = Exact();
  (*config.mutable_labels())["a"] = "b";
  config.mutable_time_to_live()->set_seconds(9);
  config.mutable_layer_groups(0)->set_count(1);
  config.mutable_layer_groups(0)->set_value_dim(8);
  config.mutable_layer_groups(0)->mutable_exact()->set_storage(v1::F32);
  EXPECT_EQ(PlanSession(config, options)->identity, identity);
  config.mutable_layer_groups(0)->set_value_dim(9);
  EXPECT_NE(PlanSession(config, options)->identity, identity);
  config = Exact();
  config.mutable_layer_groups(0)->set_window_tokens(64);
  EXPECT_NE(PlanSession(config, options)->identity, identity);
  config = Exact();
  config.mutable_layer_groups(0)->set_scale(1);
  EXPECT_NE(PlanSession(config, options)->identity, identity);
}

TEST(SessionConfig, DefaultsOfKdeAreWrittenOut) {
  const Options options;
  const auto plan = PlanSession(Kde(), options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const v1::LayerGroup& group = plan->config.layer_groups(0);
  EXPECT_EQ(group.kde().mode(), v1::KdeConfig::AUTO);
  EXPECT_EQ(group.kde().accuracy().target_error(), 0.05);
  EXPECT_EQ(group.kde().accuracy().max_keys(), 0);
  EXPECT_EQ(group.scale(), 0.25F) << "softmax, as exact";
  EXPECT_EQ(plan->groups[0].kind, EngineKind::kKde);
  EXPECT_EQ(plan->groups[0].accuracy.target_error, 0.05);
  EXPECT_FALSE(plan->groups[0].whole_batch);
  EXPECT_EQ(PlanSession(plan->config, options)->identity, plan->identity);

  v1::SessionConfig config = Kde();
  v1::Accuracy& accuracy = *config.mutable_layer_groups(0)->mutable_kde()->mutable_accuracy();
  accuracy.set_target_error(-0.0);
  EXPECT_EQ(PlanSession(config, options)->identity, plan->identity);
  accuracy.set_max_keys(100);
  const auto budget = PlanSession(config, options);
  EXPECT_EQ(budget->groups[0].accuracy.target_error, 0) << "a budget alone has no target";
  EXPECT_EQ(budget->groups[0].accuracy.max_keys, 100);
  EXPECT_NE(budget->identity, plan->identity);
  config = Kde();
  config.set_seed(1);
  EXPECT_NE(PlanSession(config, options)->identity, plan->identity);
}

TEST(SessionConfig, ATimeToLiveIsClampedToTheLongest) {
  Options options;
  options.max_time_to_live = absl::Seconds(100);
  google::protobuf::Duration asked;
  asked.set_seconds(std::numeric_limits<std::int64_t>::max());
  asked.set_nanos(std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(*TimeToLive(asked, options), absl::Seconds(100));
  asked.set_seconds(3);
  asked.set_nanos(500'000'000);
  EXPECT_EQ(*TimeToLive(asked, options), absl::Milliseconds(3500));
}

}  // namespace
}  // namespace attnd::server
