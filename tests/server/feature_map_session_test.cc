// Sessions that answer with a learned feature map: which one they hold, for how long, and which
// they refuse.
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "server/error.h"
#include "server/feature_map_store.h"
#include "server/feature_map_upload.h"
#include "server/session_config.h"
#include "tests/server/feature_map_fixture.h"
#include "tests/server/session_fixture.h"

namespace attnd::server {
namespace {

class FeatureMapSessions : public SessionFixture {
 protected:
  v1::SessionConfig Config(const TestMap& map) const {
    v1::SessionConfig config;
    v1::LayerGroup& group = *config.add_layer_groups();
    group.set_count(3);
    group.set_kv_heads(1);
    group.set_query_heads(4);
    group.set_key_dim(8);
    v1::FeatureMap& learned = *group.mutable_linear()->mutable_feature_map();
    learned.set_kind(v1::LEARNED);
    learned.set_weights(map.header.sha256());
    return config;
  }

  FeatureMapStore store_{options_, clock_};
};

TEST_F(FeatureMapSessions, HoldTheirMapUntilTheyEnd) {
  const TestMap map = MakeTestMap(v1::FeatureMapHeader::EXP, 1, 4, 8, 16, true, 1);
  const absl::Status unknown = PlanSession(Config(map), options_, &store_).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(unknown), v1::UNKNOWN_FEATURE_MAP);
  EXPECT_EQ(ReasonOf(PlanSession(Config(map), options_).status()), v1::UNKNOWN_FEATURE_MAP);
  {
    FeatureMapUpload upload(store_, options_);
    ASSERT_TRUE(upload.Take(map.Header()).ok());
    ASSERT_TRUE(upload.Take(map.Chunk(0, map.payload.size())).ok());
    ASSERT_TRUE(upload.End().ok());
  }
  SessionPlan plan = *PlanSession(Config(map), options_, &store_);
  ASSERT_TRUE(budget_.Reserve(Session::initial_bytes(plan)).ok());
  auto session =
      std::make_shared<Session>(SessionKey{Session::kDefaultTenant, "s"}, std::move(plan),
                                SessionBirth{7, 7, absl::Now()}, 1, clock_, scheduler_, budget_);
  EXPECT_EQ(session->Describe().config().layer_groups(0).linear().feature_map().weights(),
            map.header.sha256());
  clock_.Advance(2 * options_.feature_map_idle_time);
  store_.ExpireIdle();
  EXPECT_EQ(store_.usage().maps, 1) << "while the session lives";
  session = nullptr;
  store_.ExpireIdle();
  EXPECT_EQ(store_.usage().maps, 1) << "its idle time begins";
  clock_.Advance(options_.feature_map_idle_time);
  store_.ExpireIdle();
  EXPECT_EQ(store_.usage().maps, 0);
  EXPECT_EQ(ReasonOf(PlanSession(Config(map), options_, &store_).status()),
            v1::UNKNOWN_FEATURE_MAP);
}

TEST_F(FeatureMapSessions, RefuseMapsThatDoNotFit) {
  const TestMap map = MakeTestMap(v1::FeatureMapHeader::EXP, 1, 4, 8, 16, true, 1);
  {
    FeatureMapUpload upload(store_, options_);
    ASSERT_TRUE(upload.Take(map.Header()).ok());
    ASSERT_TRUE(upload.Take(map.Chunk(0, map.payload.size())).ok());
    ASSERT_TRUE(upload.End().ok());
  }
  const auto message = [&](auto change) {
    v1::SessionConfig config = Config(map);
    change(*config.mutable_layer_groups(0));
    const absl::Status status = PlanSession(config, options_, &store_).status();
    EXPECT_EQ(ReasonOf(status), v1::INVALID_FIELD) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(message([](auto& group) { group.set_key_dim(16); }),
            "config.layer_groups[0]: feature_map.weights is for key_dim 8; the layer's is 16");
  EXPECT_EQ(message([](auto& group) { group.set_kv_heads(2); }),
            "config.layer_groups[0]: feature_map.weights is for kv_heads 1; the layer's is 2");
  EXPECT_EQ(message([](auto& group) {
              group.mutable_linear()->mutable_feature_map()->set_weights("abc");
            }),
            "config.layer_groups[0].linear.feature_map.weights has 3 bytes; it must be a SHA-256, "
            "of 32");
  EXPECT_EQ(message([](auto& group) {
              group.mutable_linear()->mutable_feature_map()->set_kind(v1::RELU);
            }),
            "config.layer_groups[0].linear.feature_map.weights has 32 bytes; it must not be set "
            "for other kinds than LEARNED");
  EXPECT_EQ(
      message([](auto& group) { group.mutable_linear()->mutable_feature_map()->set_features(16); }),
      "config.layer_groups[0]: feature_map.features is 16; it must not be set for learned");
  clock_.Advance(options_.feature_map_idle_time);
  store_.ExpireIdle();
  EXPECT_EQ(store_.usage().maps, 0) << "a plan that was refused holds nothing";
}

}  // namespace
}  // namespace attnd::server
