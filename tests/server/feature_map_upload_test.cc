// What an upload of a learned feature map takes, holds and refuses, and what its hash covers.
#include "server/feature_map_upload.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/error.h"
#include "tests/server/feature_map_fixture.h"
#include "tests/server/feature_map_store_fixture.h"

namespace attnd::server {
namespace {

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

}  // namespace
}  // namespace attnd::server
