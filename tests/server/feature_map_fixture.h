// Learned feature maps as messages, from code that knows the contract and not the server.
#ifndef ATTND_TESTS_SERVER_FEATURE_MAP_FIXTURE_H_
#define ATTND_TESTS_SERVER_FEATURE_MAP_FIXTURE_H_

#include <openssl/sha.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "attnd/v1/attention.pb.h"

namespace attnd {

struct TestMap {
  v1::FeatureMapHeader header;
  std::string payload;
  std::vector<float> numbers;

  // Completes the header: what the client library computes.
  void Seal() {
    payload.resize(numbers.size() * sizeof(float));
    if (!numbers.empty()) std::memcpy(payload.data(), numbers.data(), payload.size());
    header.set_payload_bytes(static_cast<std::int64_t>(payload.size()));
    std::string bytes;
    for (const std::uint32_t number :
         {std::uint32_t{1}, static_cast<std::uint32_t>(header.activation()),
          static_cast<std::uint32_t>(header.kv_heads()),
          static_cast<std::uint32_t>(header.query_heads()),
          static_cast<std::uint32_t>(header.key_dim()),
          static_cast<std::uint32_t>(header.features()), std::uint32_t{header.key_bias()},
          std::uint32_t{header.query_bias()}}) {
      bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
    }
    bytes += payload;
    std::string sha256(SHA256_DIGEST_LENGTH, '\0');
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
           reinterpret_cast<unsigned char*>(sha256.data()));
    header.set_sha256(sha256);
  }

  v1::PutFeatureMapRequest Header() const {
    v1::PutFeatureMapRequest request;
    *request.mutable_header() = header;
    return request;
  }
  v1::PutFeatureMapRequest Chunk(std::size_t first, std::size_t count) const {
    v1::PutFeatureMapRequest request;
    request.set_chunk(payload.substr(first, count));
    return request;
  }
};

inline TestMap MakeTestMap(v1::FeatureMapHeader::Activation activation, std::int32_t kv_heads,
                           std::int32_t query_heads, std::int32_t key_dim, std::int32_t features,
                           bool bias, std::uint32_t seed) {
  TestMap map;
  map.header.set_activation(activation);
  map.header.set_kv_heads(kv_heads);
  map.header.set_query_heads(query_heads);
  map.header.set_key_dim(key_dim);
  map.header.set_features(features);
  map.header.set_key_bias(bias);
  map.header.set_query_bias(bias);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.3F);
  const std::int64_t rows = std::int64_t{kv_heads + query_heads} * features;
  map.numbers.resize(static_cast<std::size_t>(rows * (key_dim + (bias ? 1 : 0))));
  for (float& number : map.numbers) number = normal(random);
  map.Seal();
  return map;
}

}  // namespace attnd

#endif  // ATTND_TESTS_SERVER_FEATURE_MAP_FIXTURE_H_
