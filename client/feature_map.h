// The weights of a learned feature map, as a program holds them, and their way to a server.
//
// Views of the caller's memory, which are read before a call returns. Pure functions but for the
// upload; thread-safe.
#ifndef ATTND_CLIENT_FEATURE_MAP_H_
#define ATTND_CLIENT_FEATURE_MAP_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace attnd::client {

// y = W_h x + b_h of each head, then the activation (FeatureMapHeader in the contract).
struct FeatureMapWeights {
  v1::FeatureMapHeader::Activation activation = v1::FeatureMapHeader::HEDGEHOG;
  std::int64_t kv_heads = 1;
  std::int64_t query_heads = 1;
  std::int64_t key_dim = 0;
  std::int64_t features = 0;             // m
  std::span<const float> key_weights;    // [H, m, d_k]
  std::span<const float> key_bias;       // [H, m]; empty: none
  std::span<const float> query_weights;  // [Hq, m, d_k]
  std::span<const float> query_bias;     // [Hq, m]; empty: none
};

// The header of an upload, with the SHA-256 that names the map (32 bytes, for FeatureMap.weights).
// INVALID_ARGUMENT where an array does not have the size that the others say; no server is asked.
absl::StatusOr<v1::FeatureMapHeader> HeaderOf(const FeatureMapWeights& weights);

// One PutFeatureMap, in chunks of up to `chunk_bytes`. `header` is HeaderOf(weights).
grpc::Status Upload(v1::AttentionService::StubInterface& stub, grpc::ClientContext& context,
                    const v1::FeatureMapHeader& header, const FeatureMapWeights& weights,
                    std::int64_t chunk_bytes, v1::PutFeatureMapResponse* response);

// A SHA-256 as people write it: 64 hexadecimal digits. INVALID_ARGUMENT for anything else.
std::string Sha256ToHex(const std::string& sha256);
absl::StatusOr<std::string> Sha256FromHex(const std::string& hex);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_FEATURE_MAP_H_
