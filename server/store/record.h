// The frame of every value in a store, which tells damage, a value under another's key, and what a
// session of another configuration has written.
//
//   magic A7, format version 1, kind of record: one byte each
//   configuration hash of the session, 16 bytes; zeros where there is no session
//   payload
//   checksum, 8 bytes, least significant first: XXH3 (64 bits) of all before it, seeded with that
//   of the key
//
// Stateless.
#ifndef ATTND_SERVER_STORE_RECORD_H_
#define ATTND_SERVER_STORE_RECORD_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/store/keys.h"

namespace attnd::server {

using ConfigHash = std::array<std::uint8_t, 16>;

struct Record {
  ConfigHash config_hash = {};
  std::string_view payload;  // within the bytes that were decoded
};

// What a record has beside its payload.
inline constexpr std::int64_t kRecordFrameBytes = 27;

std::string EncodeRecord(RecordKind kind, std::string_view key, const ConfigHash& config_hash,
                         std::string_view payload);

// DATA_LOSS, naming the key and what is wrong. Whether the configuration is the expected one is for
// the caller to see.
absl::StatusOr<Record> DecodeRecord(RecordKind kind, std::string_view key, std::string_view bytes);

}  // namespace attnd::server

#endif  // ATTND_SERVER_STORE_RECORD_H_
