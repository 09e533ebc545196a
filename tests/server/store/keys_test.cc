// Keys in the order of their parts, and back.
#include "server/store/keys.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace attnd::server {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

// Names in ascending order, such that a key that only strung them together would mix them up.
std::vector<std::string> Names() {
  std::vector<std::string> names = {"",
                                    std::string("\0", 1),
                                    std::string("\0\0", 2),
                                    std::string("\0\x01", 2),
                                    std::string("\0\xFF", 2),
                                    "\x01",
                                    "a",
                                    std::string("a\0", 2),
                                    std::string("a\0b", 3),
                                    "a\x01",
                                    "ab",
                                    "b",
                                    "\x7F",
                                    "\x80",
                                    "\xFF",
                                    "\xFF\xFF"};
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  return names;
}

bool Within(const std::string& key, const KeyRange& range) {
  return range.from <= key && key < range.until;
}

TEST(StoreKeys, AreInTheOrderOfTheirParts) {
  std::vector<std::string> keys;
  for (const std::string& tenant : Names()) {
    for (const std::string& id : Names()) {
      for (const std::uint64_t generation : {std::uint64_t{1}, std::uint64_t{256}, kMax}) {
        for (const std::uint64_t sequence : {std::uint64_t{0}, std::uint64_t{255}, kMax}) {
          keys.push_back(LogKey(tenant, id, generation, sequence));
        }
      }
    }
  }
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), keys.size());
}

TEST(StoreKeys, GiveTheirPartsBack) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  for (const std::string& tenant : Names()) {
    for (const std::string& id : Names()) {
      const auto expect = [&](const std::string& key, RecordKind kind) {
        const auto parts = ParseKey(key);
        EXPECT_TRUE(parts.has_value()) << KeyText(key);
        if (!parts.has_value()) return KeyParts();
        EXPECT_EQ(parts->kind, kind);
        EXPECT_EQ(parts->tenant, tenant);
        EXPECT_EQ(parts->id, kind == RecordKind::kSegment ? "" : id);
        return *parts;
      };
      expect(SessionRecordKey(tenant, id), RecordKind::kSession);
      expect(TombstoneKey(tenant, id), RecordKind::kTombstone);
      EXPECT_EQ(expect(CheckpointKey(tenant, id, kMax), RecordKind::kCheckpoint).generation, kMax);
      const KeyParts root = expect(LayerRootKey(tenant, id, 3, kLast), RecordKind::kLayerRoot);
      EXPECT_EQ(std::tie(root.generation, root.layer), std::make_tuple(std::uint64_t{3}, kLast));
      const KeyParts log = expect(LogKey(tenant, id, 258, 4), RecordKind::kLog);
      EXPECT_EQ(std::make_pair(log.generation, log.sequence),
                std::make_pair(std::uint64_t{258}, std::uint64_t{4}));
      const KeyParts segment = expect(SegmentKey(tenant, kMax, 7, 640), RecordKind::kSegment);
      EXPECT_EQ(std::make_tuple(segment.lineage, segment.layer, segment.first_block),
                std::make_tuple(kMax, std::int64_t{7}, std::int64_t{640}));
    }
  }
  Sha256Digest digest = {};
  for (std::size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<std::uint8_t>(250 + i);
  const auto map = ParseKey(FeatureMapKey(digest));
  ASSERT_TRUE(map.has_value());
  EXPECT_EQ(map->kind, RecordKind::kFeatureMap);
  EXPECT_EQ(map->sha256, digest);
}

TEST(StoreKeys, AreNotReadFromOtherBytes) {
  const std::string key = LayerRootKey("tenant", std::string("i\0d", 3), 3, 4);
  for (std::size_t size = 0; size < key.size(); ++size) {
    EXPECT_FALSE(ParseKey(key.substr(0, size)).has_value()) << size;
  }
  EXPECT_FALSE(ParseKey(key + "x").has_value());
  EXPECT_FALSE(ParseKey("x" + key.substr(1)).has_value());
  EXPECT_FALSE(ParseKey(FeatureMapKey({}) + "x").has_value());
  std::string bad_escape = SessionRecordKey("a", "b");
  bad_escape[3] = '\x02';
  EXPECT_FALSE(ParseKey(bad_escape).has_value());
  std::string negative = key;
  negative[key.size() - 8] = '\x80';
  EXPECT_FALSE(ParseKey(negative).has_value());
}

TEST(StoreKeys, OfASessionAreAllInItsRangesAndNoOthers) {
  for (const std::string& tenant : Names()) {
    for (const std::string& id : Names()) {
      const std::vector<KeyRange> ranges = AllOfSession("a", std::string("a\0", 2));
      const bool own = tenant == "a" && id == std::string("a\0", 2);
      for (const std::string& key :
           {SessionRecordKey(tenant, id), TombstoneKey(tenant, id), CheckpointKey(tenant, id, 0),
            CheckpointKey(tenant, id, kMax), LayerRootKey(tenant, id, kMax, 0),
            LogKey(tenant, id, 0, 0), LogKey(tenant, id, kMax, kMax)}) {
        EXPECT_EQ(std::count_if(ranges.begin(), ranges.end(),
                                [&](const KeyRange& range) { return Within(key, range); }),
                  own ? 1 : 0)
            << KeyText(key);
      }
      for (const KeyRange& range : ranges) {
        EXPECT_FALSE(Within(SegmentKey(tenant, 1, 0, 0), range));
      }
    }
  }
}

TEST(StoreKeys, OfALogAreCutAtASequence) {
  const KeyRange up_to = LogUpTo("t", "i", 2, 300);
  const KeyRange after = LogAfter("t", "i", 2, 300);
  for (const std::uint64_t sequence : {std::uint64_t{0}, std::uint64_t{255}, std::uint64_t{300},
                                       std::uint64_t{301}, std::uint64_t{70'000}, kMax}) {
    EXPECT_EQ(Within(LogKey("t", "i", 2, sequence), up_to), sequence <= 300) << sequence;
    EXPECT_EQ(Within(LogKey("t", "i", 2, sequence), after), sequence > 300) << sequence;
    EXPECT_FALSE(Within(LogKey("t", "i", 1, sequence), up_to));
    EXPECT_FALSE(Within(LogKey("t", "i", 3, sequence), after));
  }
  const KeyRange all = LogUpTo("t", "i", 2, kMax);
  EXPECT_TRUE(Within(LogKey("t", "i", 2, kMax), all));
  EXPECT_FALSE(Within(LogKey("t", "i", 3, 0), all));
  const KeyRange none = LogAfter("t", "i", 2, kMax);
  EXPECT_LE(none.until, none.from);
}

TEST(StoreKeys, RangesOfRootsSegmentsAndKinds) {
  constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();
  const KeyRange roots = LayerRoots("t", "i", 2);
  EXPECT_TRUE(Within(LayerRootKey("t", "i", 2, 0), roots));
  EXPECT_TRUE(Within(LayerRootKey("t", "i", 2, kLast), roots));
  EXPECT_FALSE(Within(LayerRootKey("t", "i", 3, 0), roots));
  EXPECT_FALSE(Within(LayerRootKey("t", "i", 1, kLast), roots));
  const KeyRange segments = SegmentsOfLineage("t", 2);
  EXPECT_TRUE(Within(SegmentKey("t", 2, 0, 0), segments));
  EXPECT_TRUE(Within(SegmentKey("t", 2, kLast, kLast), segments));
  EXPECT_FALSE(Within(SegmentKey("t", 3, 0, 0), segments));
  EXPECT_FALSE(Within(SegmentKey("t", 1, kLast, kLast), segments));
  const KeyRange sessions = AllOfKindFrom(RecordKind::kSession, SessionRecordKey("t", "i"));
  EXPECT_FALSE(Within(SessionRecordKey("t", "h"), sessions));
  EXPECT_TRUE(Within(SessionRecordKey("t", "i"), sessions));
  EXPECT_TRUE(Within(SessionRecordKey("\xFF", "\xFF"), sessions));
  EXPECT_FALSE(Within(TombstoneKey("t", "i"), sessions));
  EXPECT_TRUE(Within(SessionRecordKey("", ""), AllOfKind(RecordKind::kSession)));
  EXPECT_TRUE(Within(SessionRecordKey("", ""), AllOfKindFrom(RecordKind::kSession, "")));
}

}  // namespace
}  // namespace attnd::server
