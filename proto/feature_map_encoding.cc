#include "proto/feature_map_encoding.h"

#include <cstdint>

namespace attnd::contract {
namespace {

constexpr std::uint32_t kEncodingVersion = 1;

}  // namespace

std::string EncodeFeatureMapHeader(const v1::FeatureMapHeader& header) {
  std::string bytes;
  for (const std::uint32_t number :
       {kEncodingVersion, static_cast<std::uint32_t>(header.activation()),
        static_cast<std::uint32_t>(header.kv_heads()),
        static_cast<std::uint32_t>(header.query_heads()),
        static_cast<std::uint32_t>(header.key_dim()), static_cast<std::uint32_t>(header.features()),
        std::uint32_t{header.key_bias()}, std::uint32_t{header.query_bias()}}) {
    for (int shift = 0; shift < 32; shift += 8) {
      bytes += static_cast<char>(number >> shift & 0xFF);
    }
  }
  return bytes;
}

}  // namespace attnd::contract
