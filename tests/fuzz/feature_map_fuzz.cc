// A row of PutFeatureMapRequest messages, each behind its length in two bytes: refused with
// a reason, or a map that a session can use; and no byte is held at the end that the store does not
// own.
//
// A header's sizes are made small and its payload_bytes and sha256 right for what follows unless
// the length's highest bit is set, or nothing would get past these checks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/error.h"
#include "server/feature_map_upload.h"
#include "server/session_config.h"
#include "tests/fuzz/fuzz_server.h"

namespace attnd::server {
namespace {

std::int32_t Small(std::int32_t size) {
  return static_cast<std::int32_t>(1U + static_cast<std::uint32_t>(size) % 5U);
}

void MakeRight(v1::FeatureMapHeader& header, const std::string& payload) {
  header.set_kv_heads(Small(header.kv_heads()));
  header.set_query_heads(header.kv_heads() * Small(header.query_heads()));
  header.set_key_dim(Small(header.key_dim()));
  header.set_features(Small(header.features()));
  const auto numbers = [&header](std::int64_t heads, bool bias) {
    return heads * header.features() * (header.key_dim() + (bias ? 1 : 0));
  };
  header.set_payload_bytes(4 * (numbers(header.kv_heads(), header.key_bias()) +
                                numbers(header.query_heads(), header.query_bias())));
  std::string encoded;
  for (const std::int32_t number :
       {1, static_cast<std::int32_t>(header.activation()), header.kv_heads(), header.query_heads(),
        header.key_dim(), header.features(), static_cast<std::int32_t>(header.key_bias()),
        static_cast<std::int32_t>(header.query_bias())}) {
    encoded.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  Sha256 sha256;
  sha256.Update(encoded);
  sha256.Update(payload);
  const Sha256Digest digest = sha256.Finish();
  header.set_sha256(std::string(digest.begin(), digest.end()));
}

void CheckSession(FeatureMapStore& store, const Options& options,
                  const v1::FeatureMapHeader& header) {
  v1::SessionConfig config;
  v1::LayerGroup& group = *config.add_layer_groups();
  group.set_kv_heads(header.kv_heads());
  group.set_query_heads(header.query_heads());
  group.set_key_dim(header.key_dim());
  group.mutable_linear()->mutable_feature_map()->set_kind(v1::LEARNED);
  group.mutable_linear()->mutable_feature_map()->set_weights(header.sha256());
  const auto plan = PlanSession(config, options, &store);
  Require(plan.ok() || ReasonOf(plan.status()) == v1::INVALID_FIELD, "a session may use it");
}

void Run(const Options& options, const std::uint8_t* data, std::size_t size) {
  FeatureMapStore store(options, SystemClock());
  std::vector<v1::PutFeatureMapRequest> messages;
  std::string payload;
  bool right = true;
  for (int count = 0; count < 16 && size >= 2; ++count) {
    const std::size_t length =
        std::min(std::size_t{data[0]} + (std::size_t{data[1]} & 0x7F) * 256, size - 2);
    right = right && (data[1] & 0x80) == 0;
    v1::PutFeatureMapRequest message;
    const bool parsed = message.ParseFromArray(data + 2, static_cast<int>(length));
    data += 2 + length;
    size -= 2 + length;
    if (!parsed) continue;
    payload += message.chunk();
    messages.push_back(message);
  }
  absl::Status status;
  bool ended = false;
  {
    FeatureMapUpload upload(store, options);
    for (v1::PutFeatureMapRequest& message : messages) {
      if (right && message.has_header()) MakeRight(*message.mutable_header(), payload);
      status = upload.Take(message);
      Require(!upload.there(), "an empty store has no map");
      if (!status.ok()) break;
    }
    if (status.ok()) {
      const auto response = upload.End();
      status = response.status();
      ended = status.ok();
    }
  }
  if (!ended) {
    Require(ReasonOf(status) != v1::ERROR_REASON_UNSPECIFIED, "a refusal has a reason");
    Require(status.message().size() < 1000, "a message is short");
    Require(store.usage().bytes == 0 && store.usage().maps == 0, "memory is given back");
    return;
  }
  Require(store.usage().maps == 1, "the map is there");
  Require(store.usage().bytes <= options.max_feature_map_bytes, "within the limit");
  FeatureMapUpload again(store, options);
  Require(again.Take(messages[0]).ok() && again.there(), "a retry finds it");
  CheckSession(store, options, messages[0].header());
}

}  // namespace
}  // namespace attnd::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto& options =
      *new attnd::server::Options(attnd::server::FuzzServer::MakeOptions());
  attnd::server::Run(options, data, size);
  return 0;
}
