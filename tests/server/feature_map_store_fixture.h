// A store of learned feature maps on a clock that tests turn, and uploads to it.
#ifndef ATTND_TESTS_SERVER_FEATURE_MAP_STORE_FIXTURE_H_
#define ATTND_TESTS_SERVER_FEATURE_MAP_STORE_FIXTURE_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "server/feature_map_store.h"
#include "server/feature_map_upload.h"
#include "server/options.h"
#include "server/sha256.h"
#include "tests/server/fake_clock.h"
#include "tests/server/feature_map_fixture.h"

namespace attnd::server {

inline Sha256Digest DigestOf(const TestMap& map) {
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

}  // namespace attnd::server

#endif  // ATTND_TESTS_SERVER_FEATURE_MAP_STORE_FIXTURE_H_
