#include "server/store/keys.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

constexpr char kEscape = '\x00';
constexpr char kEscapedZero = '\xFF';
constexpr char kEnd = '\x01';
constexpr int kNumberBytes = 8;

class KeyMaker {
 public:
  explicit KeyMaker(RecordKind kind) : key_(1, static_cast<char>(kind)) {}

  KeyMaker& Bytes(const std::string& bytes) {
    for (const char byte : bytes) {
      key_.push_back(byte);
      if (byte == kEscape) key_.push_back(kEscapedZero);
    }
    key_.push_back(kEscape);
    key_.push_back(kEnd);
    return *this;
  }
  KeyMaker& Number(std::uint64_t number) {
    for (int i = kNumberBytes - 1; i >= 0; --i) {
      key_.push_back(static_cast<char>((number >> (8 * i)) & 0xFF));
    }
    return *this;
  }
  KeyMaker& Number(std::int64_t number) { return Number(static_cast<std::uint64_t>(number)); }
  std::string Finish() { return std::move(key_); }

 private:
  std::string key_;
};

// Takes a key apart from its beginning; each step is false where the bytes do not fit.
class KeyReader {
 public:
  explicit KeyReader(std::string_view rest) : rest_(rest) {}

  bool Bytes(std::string& bytes) {
    while (rest_.size() >= 2) {
      const char byte = rest_.front();
      rest_.remove_prefix(1);
      if (byte != kEscape) {
        bytes.push_back(byte);
        continue;
      }
      const char next = rest_.front();
      rest_.remove_prefix(1);
      if (next == kEnd) return true;
      if (next != kEscapedZero) return false;
      bytes.push_back(kEscape);
    }
    return false;
  }
  bool Number(std::uint64_t& number) {
    if (rest_.size() < kNumberBytes) return false;
    for (int i = 0; i < kNumberBytes; ++i) {
      number = number << 8 | static_cast<unsigned char>(rest_[static_cast<std::size_t>(i)]);
    }
    rest_.remove_prefix(kNumberBytes);
    return true;
  }
  bool Number(std::int64_t& number) {
    std::uint64_t bits = 0;
    if (!Number(bits)) return false;
    number = static_cast<std::int64_t>(bits);
    return number >= 0;
  }
  bool Digest(Sha256Digest& digest) {
    if (rest_.size() < digest.size()) return false;
    std::transform(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(digest.size()),
                   digest.begin(), [](char byte) { return static_cast<std::uint8_t>(byte); });
    rest_.remove_prefix(digest.size());
    return true;
  }
  bool AtEnd() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

KeyMaker OfSession(RecordKind kind, const std::string& tenant, const std::string& id) {
  KeyMaker maker(kind);
  maker.Bytes(tenant).Bytes(id);
  return maker;
}

// The keys that begin with `prefix`, whose last byte is not FF.
KeyRange BeginningWith(std::string prefix) {
  std::string until = prefix;
  until.back() = static_cast<char>(static_cast<unsigned char>(until.back()) + 1);
  return {std::move(prefix), std::move(until)};
}

// The first key behind `key`.
std::string After(std::string key) {
  key.push_back('\0');
  return key;
}

bool ReadParts(KeyReader& reader, KeyParts& parts) {
  switch (parts.kind) {
    case RecordKind::kSession:
    case RecordKind::kTombstone:
      return reader.Bytes(parts.tenant) && reader.Bytes(parts.id);
    case RecordKind::kCheckpoint:
      return reader.Bytes(parts.tenant) && reader.Bytes(parts.id) &&
             reader.Number(parts.generation);
    case RecordKind::kLayerRoot:
      return reader.Bytes(parts.tenant) && reader.Bytes(parts.id) &&
             reader.Number(parts.generation) && reader.Number(parts.layer);
    case RecordKind::kLog:
      return reader.Bytes(parts.tenant) && reader.Bytes(parts.id) &&
             reader.Number(parts.generation) && reader.Number(parts.sequence);
    case RecordKind::kSegment:
      return reader.Bytes(parts.tenant) && reader.Number(parts.lineage) &&
             reader.Number(parts.layer) && reader.Number(parts.first_block);
    case RecordKind::kFeatureMap:
      return reader.Digest(parts.sha256);
  }
  return false;
}

}  // namespace

std::string SessionRecordKey(const std::string& tenant, const std::string& id) {
  return OfSession(RecordKind::kSession, tenant, id).Finish();
}

std::string CheckpointKey(const std::string& tenant, const std::string& id,
                          std::uint64_t generation) {
  return OfSession(RecordKind::kCheckpoint, tenant, id).Number(generation).Finish();
}

std::string LayerRootKey(const std::string& tenant, const std::string& id, std::uint64_t generation,
                         std::int64_t layer) {
  return OfSession(RecordKind::kLayerRoot, tenant, id).Number(generation).Number(layer).Finish();
}

std::string LogKey(const std::string& tenant, const std::string& id, std::uint64_t generation,
                   std::uint64_t sequence) {
  return OfSession(RecordKind::kLog, tenant, id).Number(generation).Number(sequence).Finish();
}

std::string TombstoneKey(const std::string& tenant, const std::string& id) {
  return OfSession(RecordKind::kTombstone, tenant, id).Finish();
}

std::string SegmentKey(const std::string& tenant, std::uint64_t lineage, std::int64_t layer,
                       std::int64_t first_block) {
  return KeyMaker(RecordKind::kSegment)
      .Bytes(tenant)
      .Number(lineage)
      .Number(layer)
      .Number(first_block)
      .Finish();
}

std::string FeatureMapKey(const Sha256Digest& sha256) {
  std::string key(1, static_cast<char>(RecordKind::kFeatureMap));
  for (const std::uint8_t byte : sha256) key.push_back(static_cast<char>(byte));
  return key;
}

std::optional<KeyParts> ParseKey(std::string_view key) {
  if (key.empty()) return std::nullopt;
  KeyParts parts;
  parts.kind = static_cast<RecordKind>(key.front());
  KeyReader reader(key.substr(1));
  if (!ReadParts(reader, parts) || !reader.AtEnd()) return std::nullopt;
  return parts;
}

std::string KeyText(std::string_view key) {
  if (key.empty()) return "(empty)";
  const std::string rest(key.substr(1));
  const std::string kind = absl::CEscape(std::string(key.substr(0, 1)));
  return absl::StrCat(kind, ":", absl::BytesToHexString(rest));
}

KeyRange AllOfKind(RecordKind kind) {
  return BeginningWith(std::string(1, static_cast<char>(kind)));
}

KeyRange AllOfKindFrom(RecordKind kind, const std::string& key) {
  KeyRange range = AllOfKind(kind);
  range.from = std::max(range.from, key);
  return range;
}

std::vector<KeyRange> AllOfSession(const std::string& tenant, const std::string& id) {
  std::vector<KeyRange> ranges;
  for (const RecordKind kind : {RecordKind::kSession, RecordKind::kCheckpoint,
                                RecordKind::kLayerRoot, RecordKind::kLog, RecordKind::kTombstone}) {
    ranges.push_back(BeginningWith(OfSession(kind, tenant, id).Finish()));
  }
  return ranges;
}

KeyRange LayerRoots(const std::string& tenant, const std::string& id, std::uint64_t generation) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  return {LayerRootKey(tenant, id, generation, 0),
          After(LayerRootKey(tenant, id, generation, kLast))};
}

KeyRange LogUpTo(const std::string& tenant, const std::string& id, std::uint64_t generation,
                 std::uint64_t sequence) {
  return {LogKey(tenant, id, generation, 0), After(LogKey(tenant, id, generation, sequence))};
}

KeyRange LogAfter(const std::string& tenant, const std::string& id, std::uint64_t generation,
                  std::uint64_t sequence) {
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint64_t>::max();
  return {After(LogKey(tenant, id, generation, sequence)),
          After(LogKey(tenant, id, generation, kLast))};
}

KeyRange SegmentsOfLineage(const std::string& tenant, std::uint64_t lineage) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  return {SegmentKey(tenant, lineage, 0, 0), After(SegmentKey(tenant, lineage, kLast, kLast))};
}

}  // namespace attnd::server
