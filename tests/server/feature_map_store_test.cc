// What the store keeps, for how long, and what it refuses; what an upload takes.
#include "server/feature_map_store.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/error.h"
#include "server/feature_map_upload.h"
#include "server/session_config.h"
#include "tests/server/fake_clock.h"
#include "tests/server/feature_map_fixture.h"
#include "tests/server/session_fixture.h"

namespace attnd::server {
namespace {

Sha256Digest DigestOf(const TestMap& map) {
  Sha256Digest digest;
  std::copy(map.header.sha256().begin(), map.header.sha256().end(), digest.begin());
  return digest;
}

class FeatureMaps : public ::testing::Test {
 protected:
  // 5 head matrices of 8 x 16 floats and their biases: a little over 5 * 576 bytes.
  static TestMap Small(std::uint32_t seed) {
    return MakeTestMap(v1::FeatureMapHeader::HEDGEHOG, 1, 4, 8, 16, true, seed);
  }

  FeatureMaps() { options_.max_feature_map_bytes = std::int64_t{1} << 20; }

  // The whole upload, in chunks of `piece` bytes.
  absl::StatusOr<v1::PutFeatureMapResponse> Put(const TestMap& map, std::size_t piece = 1000) {
    FeatureMapUpload upload(store_, options_);
    absl::Status status = upload.Take(map.Header());
    for (std::size_t at = 0; status.ok() && !upload.there() && at < map.payload.size();
         at += piece) {
      status = upload.Take(map.Chunk(at, piece));
    }
    if (!status.ok()) return status;
    return upload.End();
  }

  bool Holds(const TestMap& map) { return store_.Find(DigestOf(map)) != nullptr; }

  // What a map of this size makes the store hold.
  std::int64_t BytesOfOne() {
    FeatureMapStore store(options_, clock_);
    FeatureMapUpload upload(store, options_);
    const TestMap map = Small(99);
    EXPECT_TRUE(upload.Take(map.Header()).ok());
    EXPECT_TRUE(upload.Take(map.Chunk(0, map.payload.size())).ok());
    return store.usage().bytes;
  }

  Options options_;
  FakeClock clock_;
  FeatureMapStore store_{options_, clock_};
};

TEST_F(FeatureMaps, AreStoredOnceHoweverTheyAreCut) {
  const TestMap map = Small(1);
  for (const std::size_t piece : {1U, 3U, 4U, 5U, 1000U, 100'000U}) {
    const auto response = Put(map, piece);
    ASSERT_TRUE(response.ok()) << response.status();
    EXPECT_EQ(response->sha256(), map.header.sha256());
    EXPECT_EQ(response->already_there(), piece != 1);
    EXPECT_EQ(response->bytes(), store_.Find(DigestOf(map))->bytes());
  }
  EXPECT_EQ(store_.usage().maps, 1);
  EXPECT_EQ(store_.usage().bytes, BytesOfOne());
}

TEST_F(FeatureMaps, UploadsHoldNoMoreMemoryThanHasArrived) {
  constexpr std::int64_t kHeadBytes = std::int64_t{64} * 64 * 4;
  const TestMap map = MakeTestMap(v1::FeatureMapHeader::RELU, 8, 8, 64, 64, false, 2);
  options_.max_feature_map_bytes = 10 << 20;
  FeatureMapUpload upload(store_, options_);
  ASSERT_TRUE(upload.Take(map.Header()).ok());
  const std::int64_t header = store_.usage().bytes;
  EXPECT_LT(header, 4096);
  ASSERT_TRUE(upload.Take(map.Chunk(0, 7)).ok());
  EXPECT_EQ(store_.usage().bytes, header + kHeadBytes);
  ASSERT_TRUE(upload.Take(map.Chunk(7, std::size_t{2} * kHeadBytes)).ok());
  EXPECT_EQ(store_.usage().bytes, header + 3 * kHeadBytes);
}

TEST_F(FeatureMaps, AbandonedUploadsGiveTheirMemoryBack) {
  {
    FeatureMapUpload upload(store_, options_);
    const TestMap map = Small(3);
    ASSERT_TRUE(upload.Take(map.Header()).ok());
    ASSERT_TRUE(upload.Take(map.Chunk(0, 2000)).ok());
    EXPECT_GT(store_.usage().bytes, 0);
  }
  EXPECT_EQ(store_.usage().bytes, 0);
  EXPECT_EQ(store_.usage().maps, 0);
}

TEST_F(FeatureMaps, MakeRoomByTheLeastRecentlyUsedThatNobodyHolds) {
  options_.max_feature_map_bytes = 3 * BytesOfOne();
  std::vector<TestMap> maps;
  for (std::uint32_t i = 0; i < 3; ++i) {
    maps.push_back(Small(i));
    ASSERT_TRUE(Put(maps.back()).ok());
    clock_.Advance(absl::Seconds(1));
  }
  // The first is used again, the second is in use.
  EXPECT_TRUE(Holds(maps[0]));
  const MapWeightsPtr used = store_.Find(DigestOf(maps[1]));
  ASSERT_TRUE(Put(Small(10)).ok());
  EXPECT_FALSE(Holds(maps[2]));
  EXPECT_TRUE(Holds(maps[1]));
  EXPECT_TRUE(Holds(maps[0]));
  EXPECT_EQ(store_.usage().maps, 3);
  EXPECT_LE(store_.usage().bytes, options_.max_feature_map_bytes);
}

TEST_F(FeatureMaps, InUseAreNeverGivenUp) {
  options_.max_feature_map_bytes = 2 * BytesOfOne();
  const TestMap first = Small(1);
  const TestMap second = Small(2);
  ASSERT_TRUE(Put(first).ok());
  ASSERT_TRUE(Put(second).ok());
  MapWeightsPtr one = store_.Find(DigestOf(first));
  const MapWeightsPtr two = store_.Find(DigestOf(second));
  const absl::Status status = Put(Small(3)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ReasonOf(status), v1::FEATURE_MAP_BYTES);
  EXPECT_TRUE(status.GetPayload("type.googleapis.com/google.rpc.RetryInfo").has_value());
  EXPECT_EQ(store_.usage().bytes, options_.max_feature_map_bytes);
  one = nullptr;
  EXPECT_TRUE(Put(Small(3)).ok());
  EXPECT_FALSE(Holds(first));
}

// A refused upload must not have thrown out what others may come back for.
TEST_F(FeatureMaps, AnUploadThatCannotFitEvictsNothing) {
  options_.max_feature_map_bytes = 2 * BytesOfOne();
  const TestMap idle = Small(1);
  ASSERT_TRUE(Put(idle).ok());
  FeatureMapStore::Reservation huge(store_);
  EXPECT_EQ(ReasonOf(huge.GrowTo(options_.max_feature_map_bytes)), v1::FEATURE_MAP_BYTES);
  EXPECT_EQ(ReasonOf(huge.GrowTo(std::numeric_limits<std::int64_t>::max() / 2)),
            v1::FEATURE_MAP_BYTES);
  EXPECT_TRUE(Holds(idle));
}

TEST_F(FeatureMaps, ExpireOnceNobodyHasUsedThemForLong) {
  options_.feature_map_idle_time = absl::Seconds(60);
  EXPECT_EQ(store_.ExpireIdle(), std::numeric_limits<std::int64_t>::max());
  const TestMap map = Small(1);
  ASSERT_TRUE(Put(map).ok());
  EXPECT_EQ(store_.ExpireIdle(), clock_.MonotonicNanos() + 60'000'000'000);
  clock_.Advance(absl::Seconds(59));
  MapWeightsPtr used = store_.Find(DigestOf(map));
  ASSERT_NE(used, nullptr);
  clock_.Advance(absl::Seconds(1000));
  EXPECT_EQ(store_.ExpireIdle(), std::numeric_limits<std::int64_t>::max());
  // The idle time begins when the last user goes.
  used = nullptr;
  clock_.Advance(absl::Seconds(59));
  store_.ExpireIdle();
  EXPECT_EQ(store_.usage().maps, 1);
  clock_.Advance(absl::Seconds(1));
  store_.ExpireIdle();
  EXPECT_EQ(store_.usage().maps, 0);
  EXPECT_EQ(store_.usage().bytes, 0);
}

TEST_F(FeatureMaps, ARetriedUploadKeepsAMapFromExpiring) {
  options_.feature_map_idle_time = absl::Seconds(60);
  const TestMap map = Small(1);
  ASSERT_TRUE(Put(map).ok());
  clock_.Advance(absl::Seconds(50));
  EXPECT_TRUE(Put(map)->already_there());
  clock_.Advance(absl::Seconds(50));
  store_.ExpireIdle();
  EXPECT_TRUE(Holds(map));
}

TEST_F(FeatureMaps, RefusalsNameWhatIsWrong) {
  const TestMap good = Small(1);
  const auto header = [&](auto change) {
    TestMap map = good;
    change(map.header);
    FeatureMapUpload upload(store_, options_);
    const absl::Status status = upload.Take(map.Header());
    EXPECT_EQ(ReasonOf(status), v1::INVALID_FIELD) << status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(header([](auto& h) { h.clear_activation(); }),
            "header.activation is 0; it must be RELU, EXP, SOFTMAX or HEDGEHOG");
  EXPECT_EQ(header([](auto& h) { h.set_kv_heads(-3); }),
            "header.kv_heads is -3; it must be 1 to 4096");
  EXPECT_EQ(header([](auto& h) { h.set_features(2'000'000'000); }),
            "header.features is 2000000000; it must be 1 to 65536");
  EXPECT_EQ(header([](auto& h) { h.set_kv_heads(3); }),
            "header.query_heads is 4; it must be a multiple of kv_heads, which is 3");
  EXPECT_EQ(header([](auto& h) { h.set_payload_bytes(-1); }),
            "header.payload_bytes is -1; it must be 2880 for these sizes");
  EXPECT_EQ(header([](auto& h) { h.set_sha256("short"); }),
            "header.sha256 has 5 bytes; it must have 32");

  const auto fails = [&](const std::vector<v1::PutFeatureMapRequest>& messages) {
    FeatureMapUpload upload(store_, options_);
    absl::Status status;
    for (const auto& message : messages) {
      if (status.ok()) status = upload.Take(message);
    }
    if (status.ok()) status = upload.End().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(fails({}), "no message came; the first one must be the header");
  EXPECT_EQ(fails({{}}), "message is not set; it must be header or chunk");
  EXPECT_EQ(fails({good.Chunk(0, 8)}), "the first message is a chunk; it must be the header");
  EXPECT_EQ(fails({good.Header(), good.Header()}),
            "header comes a second time; it must come in the first message only");
  EXPECT_EQ(fails({good.Header(), good.Chunk(0, 0)}),
            "chunk has 0 bytes; it must have 1 to 1048576");
  EXPECT_EQ(fails({good.Header(), good.Chunk(0, 2879)}),
            "the payload has 2879 bytes; it must have 2880");
  EXPECT_EQ(fails({good.Header(), good.Chunk(0, 2880), good.Chunk(0, 1)}),
            "chunk has 1 bytes; of the payload's 2880 only 0 are missing");
  TestMap long_chunk = good;
  long_chunk.payload.resize((1 << 20) + 1);
  EXPECT_EQ(fails({good.Header(), long_chunk.Chunk(0, long_chunk.payload.size())}),
            "chunk has 1048577 bytes; it must have 1 to 1048576");
  TestMap infinite = good;
  infinite.numbers[100] = std::numeric_limits<float>::infinity();
  infinite.Seal();
  EXPECT_EQ(fails({infinite.Header(), infinite.Chunk(0, 2880)}),
            "numbers 0 to 719 of the map hold a NaN or infinity");
  TestMap changed = good;
  changed.payload[17] = static_cast<char>(changed.payload[17] ^ 1);
  EXPECT_TRUE(fails({good.Header(), changed.Chunk(0, 2880)}).find("header and payload give") !=
              std::string::npos);
  EXPECT_EQ(store_.usage().bytes, 0);
}

// The SHA-256 covers the header: the same numbers with another activation are another map.
TEST_F(FeatureMaps, AHashVouchesForTheHeader) {
  const TestMap map = Small(1);
  TestMap other = map;
  other.header.set_activation(v1::FeatureMapHeader::SOFTMAX);
  const absl::Status wrong = Put(other).status();
  EXPECT_EQ(ReasonOf(wrong), v1::INVALID_FIELD) << wrong;
  ASSERT_TRUE(Put(map).ok());
  EXPECT_EQ(Put(other).status().message(), "header.sha256 is that of a map with another header");
  other.Seal();
  EXPECT_NE(other.header.sha256(), map.header.sha256());
  EXPECT_TRUE(Put(other).ok());
  EXPECT_EQ(store_.usage().maps, 2);
}

// A hash once written down: clients that compute it must find the same.
TEST_F(FeatureMaps, TheEncodingIsWhatTheContractSaysForEver) {
  TestMap map;
  map.header.set_activation(v1::FeatureMapHeader::HEDGEHOG);
  map.header.set_kv_heads(1);
  map.header.set_query_heads(2);
  map.header.set_key_dim(2);
  map.header.set_features(1);
  map.header.set_query_bias(true);
  map.numbers = {1, 2, 3, 4, 5, 6, 7, 8};
  map.Seal();
  const auto response = Put(map);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(ToHex(DigestOf(map)),
            "5b2ce988ddac68459186a0b92ee7fb88e79343080efc6e0b20365496e8300097");
}

TEST_F(FeatureMaps, AreLimitedEach) {
  options_.max_feature_map_size = 3000;
  FeatureMapUpload upload(store_, options_);
  const absl::Status status = upload.Take(Small(1).Header());
  EXPECT_EQ(ReasonOf(status), v1::FEATURE_MAP_BYTES);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(status.GetPayload("type.googleapis.com/google.rpc.RetryInfo").has_value())
      << "a retry cannot help";
  // Sizes whose product would be terabytes.
  TestMap huge = Small(1);
  for (auto set : {&v1::FeatureMapHeader::set_kv_heads, &v1::FeatureMapHeader::set_query_heads,
                   &v1::FeatureMapHeader::set_key_dim}) {
    (huge.header.*set)(4096);
  }
  huge.header.set_features(256);
  huge.header.set_payload_bytes(std::int64_t{8192} * 256 * 4097 * 4);
  FeatureMapUpload other(store_, options_);
  EXPECT_EQ(ReasonOf(other.Take(huge.Header())), v1::FEATURE_MAP_BYTES);
  EXPECT_EQ(store_.usage().bytes, 0);
}

// It evicted every idle map, and was told at its last chunk to come again.
TEST_F(FeatureMaps, AMapThatFitsButForItsEntryIsNotToldToRetry) {
  options_.max_feature_map_bytes = 2 * BytesOfOne();
  const TestMap idle = Small(1);
  ASSERT_TRUE(Put(idle).ok());
  const TestMap map = MakeTestMap(v1::FeatureMapHeader::RELU, 1, 4, 16, 16, true, 2);
  const Options defaults;
  FeatureMapStore roomy(defaults, clock_);
  {
    FeatureMapUpload upload(roomy, defaults);
    ASSERT_TRUE(upload.Take(map.Header()).ok());
    ASSERT_TRUE(upload.Take(map.Chunk(0, map.payload.size())).ok());
    options_.max_feature_map_bytes = roomy.usage().bytes - 1;
  }
  options_.max_feature_map_size = options_.max_feature_map_bytes;
  ASSERT_GT(options_.max_feature_map_bytes, BytesOfOne());
  const absl::Status status = Put(map).status();
  EXPECT_EQ(ReasonOf(status), v1::FEATURE_MAP_BYTES);
  EXPECT_FALSE(status.GetPayload("type.googleapis.com/google.rpc.RetryInfo").has_value()) << status;
  EXPECT_TRUE(Holds(idle));
  ++options_.max_feature_map_bytes;
  ++options_.max_feature_map_size;
  EXPECT_TRUE(Put(map).ok()) << "one byte more is enough";
}

TEST_F(FeatureMaps, MayBeUploadedByManyAtOneTime) {
  constexpr int kThreads = 4;
  std::vector<TestMap> maps;
  for (std::uint32_t i = 0; i < 3; ++i) maps.push_back(Small(i));
  options_.max_feature_map_bytes = 20 * BytesOfOne();
  std::atomic<int> stored{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 60; ++round) {
        const TestMap& map = maps[static_cast<std::size_t>((t + round) % 3)];
        const auto response = Put(map, static_cast<std::size_t>(100 + 37 * t));
        ASSERT_TRUE(response.ok()) << response.status();
        if (!response->already_there()) ++stored;
        const MapWeightsPtr held = store_.Find(DigestOf(map));
        ASSERT_NE(held, nullptr);
        store_.ExpireIdle();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stored, 3);
  EXPECT_EQ(store_.usage().maps, 3);
  EXPECT_EQ(store_.usage().bytes, 3 * BytesOfOne());
}

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
  auto session = std::make_shared<Session>(SessionKey{Session::kDefaultTenant, "s"},
                                           std::move(plan), 7, 1, clock_, scheduler_, budget_);
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
