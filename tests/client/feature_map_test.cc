// Learned feature maps on the client's side: their names, and uploads that can be repeated.
#include "client/feature_map.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "client/client.h"
#include "tests/client/fake_error.h"
#include "tests/client/session_fixture.h"

namespace attnd::client {
namespace {

class FeatureMapUploads : public SessionFixture {
 protected:
  // 2 kv-heads, 4 query heads, no bias of keys.
  FeatureMapUploads() {
    weights_.kv_heads = 2;
    weights_.query_heads = 4;
    weights_.key_dim = 30;
    weights_.features = 20;
    for (int i = 0; i < 4 * 600; ++i) numbers_.push_back(static_cast<float>(i));
    weights_.key_weights = std::span(numbers_).first(1200);
    weights_.query_weights = numbers_;
    weights_.query_bias = std::span(numbers_).subspan(5, 80);
  }

  std::string Payload() const {
    std::vector<float> all(weights_.key_weights.begin(), weights_.key_weights.end());
    all.insert(all.end(), weights_.query_weights.begin(), weights_.query_weights.end());
    all.insert(all.end(), weights_.query_bias.begin(), weights_.query_bias.end());
    std::string payload(all.size() * sizeof(float), '\0');
    std::memcpy(payload.data(), all.data(), payload.size());
    return payload;
  }

  std::vector<float> numbers_;
  FeatureMapWeights weights_;
};

// The same map as in the server's test of its encoding.
TEST(FeatureMapNames, AreThoseOfTheContract) {
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6, 7, 8};
  FeatureMapWeights weights;
  weights.query_heads = 2;
  weights.key_dim = 2;
  weights.features = 1;
  weights.key_weights = std::span(numbers).first(2);
  weights.query_weights = std::span(numbers).subspan(2, 4);
  weights.query_bias = std::span(numbers).subspan(6, 2);
  const auto header = HeaderOf(weights);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(Sha256ToHex(header->sha256()),
            "5b2ce988ddac68459186a0b92ee7fb88e79343080efc6e0b20365496e8300097");
  EXPECT_EQ(*Sha256FromHex(Sha256ToHex(header->sha256())), header->sha256());
  EXPECT_EQ(header->payload_bytes(), 32);
  EXPECT_FALSE(header->key_bias());
  EXPECT_TRUE(header->query_bias());
}

TEST(FeatureMapNames, AreHexadecimal) {
  EXPECT_EQ(Sha256FromHex("12ab").status().message(),
            "'12ab' is not a SHA-256 of 64 hexadecimal digits");
  EXPECT_FALSE(Sha256FromHex(std::string(63, 'a') + "g").ok());
  EXPECT_TRUE(Sha256FromHex(std::string(64, 'A')).ok());
}

TEST_F(FeatureMapUploads, ArraysMustFitEachOther) {
  const auto message = [&](auto change) {
    FeatureMapWeights weights = weights_;
    change(weights);
    const auto header = HeaderOf(weights);
    EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(header.status().message());
  };
  EXPECT_EQ(message([](auto& w) { w.kv_heads = 0; }),
            "kv_heads: 0 is not a positive 32-bit number");
  EXPECT_EQ(message([](auto& w) { w.features = std::int64_t{1} << 31; }),
            "features: 2147483648 is not a positive 32-bit number");
  EXPECT_EQ(message([](auto& w) { w.key_weights = w.key_weights.first(1199); }),
            "key_weights: 1199 numbers, expected 2 heads of 600");
  EXPECT_EQ(message([](auto& w) { w.query_bias = w.query_bias.first(3); }),
            "query_bias: 3 numbers, expected 4 heads of 20");
  EXPECT_EQ(message([](auto& w) {
              w.features = w.key_dim = (std::int64_t{1} << 31) - 1;
              w.kv_heads = 100;
            }),
            "key_weights: 1200 numbers, expected 100 heads of 4611686014132420609");
}

TEST_F(FeatureMapUploads, GoInChunksBelowTheServersLimit) {
  server_.limits.set_max_message_bytes(1000);
  Connect();
  const auto response = client_->PutFeatureMap(weights_, "routed");
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_FALSE(response->already_there());
  const FakeServer::Seen seen = server_.seen();
  EXPECT_EQ(seen.map_payload, Payload());
  EXPECT_LE(seen.largest_chunk, 984U);
  EXPECT_GT(seen.largest_chunk, 900U);
  EXPECT_EQ(seen.map_header.sha256(), response->sha256());
  EXPECT_EQ(seen.map_header.query_heads(), 4);
  EXPECT_EQ(seen.session_headers.count("routed"), 1U);
}

TEST_F(FeatureMapUploads, AreRepeatedWhereTheAnswerWasLost) {
  Connect();
  server_.DropNextAnswers(1);
  const auto response = client_->PutFeatureMap(weights_);
  ASSERT_TRUE(response.ok()) << response.status();
  // The first attempt had stored it.
  EXPECT_TRUE(response->already_there());
  EXPECT_EQ(server_.seen().map_payload, Payload());
}

TEST_F(FeatureMapUploads, WhatCannotPassIsNotRepeated) {
  Connect();
  const std::int64_t before = server_.seen().calls;
  server_.FailNext(
      {FakeError(grpc::StatusCode::RESOURCE_EXHAUSTED, "FEATURE_MAP_BYTES", "too large")});
  const auto response = client_->PutFeatureMap(weights_);
  EXPECT_EQ(ErrorReasonOf(response.status()), "FEATURE_MAP_BYTES");
  EXPECT_EQ(server_.seen().calls, before + 1);
}

}  // namespace
}  // namespace attnd::client
