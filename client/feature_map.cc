#include "client/feature_map.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/feature_map_encoding.h"

namespace attnd::client {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kSha256Bytes = 32;

// In the order of the payload.
std::array<std::span<const float>, 4> Arrays(const FeatureMapWeights& weights) {
  return {weights.key_weights, weights.key_bias, weights.query_weights, weights.query_bias};
}

absl::Status CheckSize(const char* field, std::int64_t size) {
  // As wide as the contract's fields.
  if (size >= 1 && size <= std::numeric_limits<std::int32_t>::max()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", size, " is not a positive 32-bit number"));
}

absl::Status CheckArray(const char* field, std::span<const float> array, std::int64_t heads,
                        std::int64_t head_numbers) {
  std::int64_t expected = 0;
  if (!__builtin_mul_overflow(heads, head_numbers, &expected) &&
      static_cast<std::int64_t>(array.size()) == expected) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", array.size(), " numbers, expected ",
                                                 heads, " heads of ", head_numbers));
}

absl::StatusOr<std::string> Sha256Of(const v1::FeatureMapHeader& header,
                                     const FeatureMapWeights& weights) {
  const std::string encoded = contract::EncodeFeatureMapHeader(header);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  bool ok = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  ok = ok && EVP_DigestUpdate(context.get(), encoded.data(), encoded.size()) == 1;
  for (const std::span<const float> array : Arrays(weights)) {
    ok = ok && EVP_DigestUpdate(context.get(), array.data(), array.size_bytes()) == 1;
  }
  std::array<unsigned char, kSha256Bytes> digest{};
  ok = ok && EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) == 1;
  if (!ok) return absl::InternalError("the SHA-256 cannot be computed");
  return std::string(digest.begin(), digest.end());
}

}  // namespace

absl::StatusOr<v1::FeatureMapHeader> HeaderOf(const FeatureMapWeights& weights) {
  absl::Status status = CheckSize("kv_heads", weights.kv_heads);
  status.Update(CheckSize("query_heads", weights.query_heads));
  status.Update(CheckSize("key_dim", weights.key_dim));
  status.Update(CheckSize("features", weights.features));
  if (!status.ok()) return status;
  const std::int64_t matrix = weights.features * weights.key_dim;
  status.Update(CheckArray("key_weights", weights.key_weights, weights.kv_heads, matrix));
  status.Update(CheckArray("query_weights", weights.query_weights, weights.query_heads, matrix));
  if (!weights.key_bias.empty()) {
    status.Update(CheckArray("key_bias", weights.key_bias, weights.kv_heads, weights.features));
  }
  if (!weights.query_bias.empty()) {
    status.Update(
        CheckArray("query_bias", weights.query_bias, weights.query_heads, weights.features));
  }
  if (!status.ok()) return status;
  v1::FeatureMapHeader header;
  header.set_activation(weights.activation);
  header.set_kv_heads(static_cast<std::int32_t>(weights.kv_heads));
  header.set_query_heads(static_cast<std::int32_t>(weights.query_heads));
  header.set_key_dim(static_cast<std::int32_t>(weights.key_dim));
  header.set_features(static_cast<std::int32_t>(weights.features));
  header.set_key_bias(!weights.key_bias.empty());
  header.set_query_bias(!weights.query_bias.empty());
  std::int64_t bytes = 0;
  for (const std::span<const float> array : Arrays(weights)) {
    bytes += static_cast<std::int64_t>(array.size_bytes());
  }
  header.set_payload_bytes(bytes);
  absl::StatusOr<std::string> sha256 = Sha256Of(header, weights);
  if (!sha256.ok()) return sha256.status();
  header.set_sha256(*std::move(sha256));
  return header;
}

grpc::Status Upload(v1::AttentionService::StubInterface& stub, grpc::ClientContext& context,
                    const v1::FeatureMapHeader& header, const FeatureMapWeights& weights,
                    std::int64_t chunk_bytes, v1::PutFeatureMapResponse* response) {
  const auto writer = stub.PutFeatureMap(&context, response);
  v1::PutFeatureMapRequest request;
  *request.mutable_header() = header;
  // A write fails once the server has ended the call, perhaps because it has the map.
  bool open = writer->Write(request);
  for (const std::span<const float> array : Arrays(weights)) {
    const char* const bytes = reinterpret_cast<const char*>(array.data());
    for (std::size_t at = 0; open && at < array.size_bytes();) {
      const std::size_t size =
          std::min(array.size_bytes() - at, static_cast<std::size_t>(chunk_bytes));
      request.set_chunk(bytes + at, size);
      open = writer->Write(request);
      at += size;
    }
  }
  if (open) writer->WritesDone();
  return writer->Finish();
}

std::string Sha256ToHex(const std::string& sha256) { return absl::BytesToHexString(sha256); }

absl::StatusOr<std::string> Sha256FromHex(const std::string& hex) {
  if (hex.size() != 2 * kSha256Bytes || !std::all_of(hex.begin(), hex.end(), [](char c) {
        return absl::ascii_isxdigit(static_cast<unsigned char>(c));
      })) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", absl::CEscape(hex), "' is not a SHA-256 of 64 hexadecimal digits"));
  }
  return absl::HexStringToBytes(hex);
}

}  // namespace attnd::client
