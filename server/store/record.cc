#include "server/store/record.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

// As xxh_x86dispatch.h asks, which chooses the vector code at run time.
#define XXH_STATIC_LINKING_ONLY
#include <xxh_x86dispatch.h>
#include <xxhash.h>

namespace attnd::server {
namespace {

constexpr unsigned char kMagic = 0xA7;
constexpr unsigned char kVersion = 1;
constexpr std::size_t kHeadBytes = 3 + sizeof(ConfigHash);
constexpr std::size_t kChecksumBytes = 8;
static_assert(kHeadBytes + kChecksumBytes == kRecordFrameBytes);

std::uint64_t Checksum(std::string_view key, std::string_view bytes) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), XXH3_64bits(key.data(), key.size()));
}

absl::Status Damaged(std::string_view key, const std::string& what) {
  return absl::DataLossError(absl::StrCat("record ", KeyText(key), ": ", what));
}

}  // namespace

std::string EncodeRecord(RecordKind kind, std::string_view key, const ConfigHash& config_hash,
                         std::string_view payload) {
  std::string bytes;
  bytes.reserve(kHeadBytes + payload.size() + kChecksumBytes);
  bytes.push_back(static_cast<char>(kMagic));
  bytes.push_back(static_cast<char>(kVersion));
  bytes.push_back(static_cast<char>(kind));
  for (const std::uint8_t byte : config_hash) bytes.push_back(static_cast<char>(byte));
  bytes.append(payload);
  const std::uint64_t checksum = Checksum(key, bytes);
  for (std::size_t i = 0; i < kChecksumBytes; ++i) {
    bytes.push_back(static_cast<char>((checksum >> (8 * i)) & 0xFF));
  }
  return bytes;
}

absl::StatusOr<Record> DecodeRecord(RecordKind kind, std::string_view key, std::string_view bytes) {
  if (bytes.size() < kHeadBytes + kChecksumBytes) {
    return Damaged(key, absl::StrCat("it has ", bytes.size(), " bytes; a record has at least ",
                                     kRecordFrameBytes));
  }
  const auto byte_at = [bytes](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (byte_at(0) != kMagic) {
    return Damaged(key, absl::StrCat("it begins with byte ", int{byte_at(0)}, "; a record with ",
                                     int{kMagic}));
  }
  // Before the checksum, which another version may make otherwise.
  if (byte_at(1) != kVersion) {
    return Damaged(key, absl::StrCat("its format version is ", int{byte_at(1)},
                                     "; this server reads ", int{kVersion}));
  }
  const std::size_t end = bytes.size() - kChecksumBytes;
  std::uint64_t checksum = 0;
  for (std::size_t i = 0; i < kChecksumBytes; ++i) {
    checksum |= std::uint64_t{byte_at(end + i)} << (8 * i);
  }
  if (checksum != Checksum(key, bytes.substr(0, end))) {
    return Damaged(key, "its checksum is not that of its bytes and key");
  }
  if (byte_at(2) != static_cast<unsigned char>(kind)) {
    return Damaged(key, absl::StrCat("its kind is ", int{byte_at(2)}, "; expected ",
                                     int{static_cast<unsigned char>(kind)}));
  }
  Record record;
  std::transform(bytes.begin() + 3, bytes.begin() + kHeadBytes, record.config_hash.begin(),
                 [](char byte) { return static_cast<std::uint8_t>(byte); });
  record.payload = bytes.substr(kHeadBytes, end - kHeadBytes);
  return record;
}

}  // namespace attnd::server
