// The keys under which a store keeps records, so that the records of a session, of one of its logs
// or of a lineage stand together and in order.
//
// A key is a byte for the kind of record, then its parts in order:
//   s  configuration of a session   tenant, id
//   c  checkpoint of a session      tenant, id, generation
//   r  root of a layer              tenant, id, generation, layer
//   l  log record                   tenant, id, generation, sequence
//   t  tombstone of a session       tenant, id
//   g  sealed segment of a layer    tenant, lineage, layer, first block
//   m  feature map                  SHA-256 of its content, 32 bytes
// A lineage is the number under which a session and its forks share segments; a segment is written
// once. A tenant and an id may be any bytes: a zero byte in them is written as 00 FF and the end is
// 00 01, which keeps their order and makes none the beginning of another. Numbers have 8 bytes,
// the most significant first. So keys are in the order of their parts, and different parts give
// different keys.
//
// Stateless. Layers and blocks are not negative.
#ifndef ATTND_SERVER_STORE_KEYS_H_
#define ATTND_SERVER_STORE_KEYS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/sha256.h"

namespace attnd::server {

enum class RecordKind : char {
  kSession = 's',
  kCheckpoint = 'c',
  kLayerRoot = 'r',
  kLog = 'l',
  kTombstone = 't',
  kSegment = 'g',
  kFeatureMap = 'm',
};

std::string SessionRecordKey(const std::string& tenant, const std::string& id);
std::string CheckpointKey(const std::string& tenant, const std::string& id,
                          std::uint64_t generation);
std::string LayerRootKey(const std::string& tenant, const std::string& id, std::uint64_t generation,
                         std::int64_t layer);
std::string LogKey(const std::string& tenant, const std::string& id, std::uint64_t generation,
                   std::uint64_t sequence);
std::string TombstoneKey(const std::string& tenant, const std::string& id);
std::string SegmentKey(const std::string& tenant, std::uint64_t lineage, std::int64_t layer,
                       std::int64_t first_block);
std::string FeatureMapKey(const Sha256Digest& sha256);

// The parts of a key; those that its kind has not are empty.
struct KeyParts {
  RecordKind kind = RecordKind::kSession;
  std::string tenant;
  std::string id;
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::uint64_t lineage = 0;
  std::int64_t layer = 0;
  std::int64_t first_block = 0;
  Sha256Digest sha256 = {};
};
// Nothing for bytes that none of the functions above makes.
std::optional<KeyParts> ParseKey(std::string_view key);

// A key as people read it, for messages: its kind, then its bytes in hexadecimal.
std::string KeyText(std::string_view key);

// The keys from `from` up to, but without, `until`.
struct KeyRange {
  std::string from;
  std::string until;
};

// All records of a kind.
KeyRange AllOfKind(RecordKind kind);
// All records of a kind from `key` on; `key` is of that kind.
KeyRange AllOfKindFrom(RecordKind kind, const std::string& key);
// Every record under the name of a session: all kinds but segments, which forks may share, and
// feature maps.
std::vector<KeyRange> AllOfSession(const std::string& tenant, const std::string& id);
KeyRange LayerRoots(const std::string& tenant, const std::string& id, std::uint64_t generation);
// Log records of a session's generation, the one with number `sequence` included.
KeyRange LogUpTo(const std::string& tenant, const std::string& id, std::uint64_t generation,
                 std::uint64_t sequence);
// Those behind it.
KeyRange LogAfter(const std::string& tenant, const std::string& id, std::uint64_t generation,
                  std::uint64_t sequence);
KeyRange SegmentsOfLineage(const std::string& tenant, std::uint64_t lineage);

}  // namespace attnd::server

#endif  // ATTND_SERVER_STORE_KEYS_H_
