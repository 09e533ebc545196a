// Records and every way in which their bytes may not be what was written.
#include "server/store/record.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace attnd::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const std::string& Key() {
  static const std::string* const key = new std::string(LogKey("tenant", "id", 1, 2));
  return *key;
}

ConfigHash Hash() {
  ConfigHash hash = {};
  for (std::size_t i = 0; i < hash.size(); ++i) hash[i] = static_cast<std::uint8_t>(i * 17);
  return hash;
}

std::string DamageOf(RecordKind kind, const std::string& key, const std::string& bytes) {
  const auto record = DecodeRecord(kind, key, bytes);
  EXPECT_EQ(record.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(record.status().message()), HasSubstr(KeyText(key)));
  return std::string(record.status().message());
}

TEST(Records, GiveTheirPayloadBack) {
  for (const std::size_t size : {0U, 1U, 17U, 240U, 241U, 5000U}) {
    std::string payload(size, '\0');
    for (std::size_t i = 0; i < size; ++i) payload[i] = static_cast<char>(i * 7);
    const std::string bytes = EncodeRecord(RecordKind::kLog, Key(), Hash(), payload);
    EXPECT_EQ(bytes.size(), size + kRecordFrameBytes);
    const auto record = DecodeRecord(RecordKind::kLog, Key(), bytes);
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->payload, payload);
    EXPECT_EQ(record->config_hash, Hash());
  }
}

// Bytes that are on disks: this version reads them for ever.
TEST(Records, AreWrittenTheSameForEver) {
  const std::string bytes = EncodeRecord(RecordKind::kTombstone, "t", Hash(), "payload");
  std::string hex;
  for (const char byte : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(byte) / 16];
    hex += kDigits[static_cast<unsigned char>(byte) % 16];
  }
  EXPECT_EQ(hex, "a7017400112233445566778899aabbccddeeff7061796c6f6164d0b9e4e2373c5aa6");
}

TEST(Records, AreRefusedWithAnyByteChanged) {
  for (const std::size_t size : {0U, 5U, 300U}) {
    const std::string bytes = EncodeRecord(RecordKind::kLog, Key(), Hash(), std::string(size, 'p'));
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (const int bit : {0, 3, 7}) {
        std::string damaged = bytes;
        damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
        DamageOf(RecordKind::kLog, Key(), damaged);
      }
    }
  }
}

TEST(Records, AreRefusedAtAnyOtherLength) {
  const std::string bytes = EncodeRecord(RecordKind::kLog, Key(), Hash(), "payload");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    DamageOf(RecordKind::kLog, Key(), bytes.substr(0, size));
  }
  DamageOf(RecordKind::kLog, Key(), bytes + '\0');
  DamageOf(RecordKind::kLog, Key(), bytes + bytes);
}

TEST(Records, AreRefusedUnderAnotherKeyOrKind) {
  const std::string bytes = EncodeRecord(RecordKind::kLog, Key(), Hash(), "payload");
  EXPECT_THAT(DamageOf(RecordKind::kLog, LogKey("tenant", "id", 1, 3), bytes),
              EndsWith("its checksum is not that of its bytes and key"));
  EXPECT_THAT(DamageOf(RecordKind::kCheckpoint, Key(), bytes),
              EndsWith("its kind is 108; expected 99"));
}

TEST(Records, SayWhichVersionTheyAreOf) {
  std::string bytes = EncodeRecord(RecordKind::kLog, Key(), Hash(), "payload");
  bytes[1] = 2;
  EXPECT_THAT(DamageOf(RecordKind::kLog, Key(), bytes),
              EndsWith("its format version is 2; this server reads 1"));
  bytes[0] = 0;
  EXPECT_THAT(DamageOf(RecordKind::kLog, Key(), bytes),
              EndsWith("it begins with byte 0; a record with 167"));
  EXPECT_THAT(DamageOf(RecordKind::kLog, Key(), ""),
              EndsWith("it has 0 bytes; a record has at least 27"));
}

}  // namespace
}  // namespace attnd::server
