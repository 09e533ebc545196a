// What the store keeps, for how long, and what makes room for what.
#include "server/feature_map_store.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "server/error.h"
#include "server/feature_map_upload.h"
#include "tests/server/feature_map_fixture.h"
#include "tests/server/feature_map_store_fixture.h"

namespace attnd::server {
namespace {

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
        const auto response = Put(map, std::size_t{100} + 37 * static_cast<std::size_t>(t));
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

}  // namespace
}  // namespace attnd::server
