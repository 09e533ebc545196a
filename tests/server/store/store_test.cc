// What every store promises, held against each of them.
#include "server/store/store.h"

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/memory_store.h"
#include "server/store/rocksdb_store.h"
#include "tests/server/store/store_directory.h"

namespace attnd::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Pairs = std::vector<std::pair<std::string, std::string>>;

class InMemory {
 public:
  Store& store() { return store_; }

 private:
  MemoryStore store_;
};

class OnDisk {
 public:
  Store& store() { return *store_; }

 private:
  const StoreDirectory directory_;
  const std::unique_ptr<RocksDbStore> store_ = directory_.OpenOrDie();
};

template <typename Holder>
class Stores : public ::testing::Test {
 protected:
  void Put(const std::string& key, const std::string& value) {
    WriteBatch batch;
    batch.Put(key, value);
    ASSERT_TRUE(store_.Apply(batch, Sync::kLater).ok());
  }
  Pairs Scan(const std::string& from, const std::string& until) {
    Pairs pairs;
    EXPECT_TRUE(store_
                    .Scan(from, until,
                          [&](std::string_view key, std::string_view value) {
                            pairs.emplace_back(key, value);
                            return true;
                          })
                    .ok());
    return pairs;
  }

  Holder holder_;
  Store& store_ = holder_.store();
};

using Implementations = ::testing::Types<InMemory, OnDisk>;
TYPED_TEST_SUITE(Stores, Implementations);

TYPED_TEST(Stores, GiveWhatWasPut) {
  const std::string binary("\x00\xFF\n\x00", 4);
  this->Put("a", "1");
  this->Put(binary, binary);
  this->Put("empty", "");
  EXPECT_EQ(*this->store_.Get("a"), "1");
  EXPECT_EQ(*this->store_.Get(binary), binary);
  EXPECT_EQ(*this->store_.Get("empty"), "");
  EXPECT_EQ(*this->store_.Get("b"), std::nullopt);
  this->Put("a", "2");
  EXPECT_EQ(*this->store_.Get("a"), "2");
  EXPECT_TRUE(this->store_.Flush().ok());
  EXPECT_FALSE(this->store_.Facts().name.empty());
}

TYPED_TEST(Stores, ScanInTheOrderOfUnsignedBytes) {
  const std::vector<std::string> keys = {std::string("\0", 1),
                                         std::string("\0\0", 2),
                                         "a",
                                         std::string("a\0", 2),
                                         "ab",
                                         "b",
                                         "\x7F",
                                         "\x80",
                                         "\xFF"};
  for (auto key = keys.rbegin(); key != keys.rend(); ++key) this->Put(*key, "v" + *key);
  Pairs expected;
  for (const std::string& key : keys) expected.emplace_back(key, "v" + key);
  EXPECT_EQ(this->Scan("", "\xFF\xFF"), expected);
  EXPECT_THAT(this->Scan("a", "b"), ElementsAre(expected[2], expected[3], expected[4]));
  EXPECT_THAT(this->Scan("aa", "b"), ElementsAre(expected[4]));
  EXPECT_THAT(this->Scan("b", "b"), IsEmpty());
  EXPECT_THAT(this->Scan("b", "a"), IsEmpty());
}

TYPED_TEST(Stores, StopAScanWhereTheVisitorSays) {
  for (const char* key : {"a", "b", "c"}) this->Put(key, "");
  std::vector<std::string> seen;
  ASSERT_TRUE(this->store_
                  .Scan("a", "z",
                        [&](std::string_view key, std::string_view) {
                          seen.emplace_back(key);
                          return key != "b";
                        })
                  .ok());
  EXPECT_THAT(seen, ElementsAre("a", "b"));
}

TYPED_TEST(Stores, ApplyTheWritesOfABatchInOrder) {
  for (const char* key : {"a", "b", "c", "d"}) this->Put(key, "old");
  WriteBatch batch;
  batch.Put("b2", "dies");
  batch.DeleteRange("b", "d");
  batch.Put("c", "new");
  batch.Delete("a");
  batch.Delete("none");
  batch.Put("e", "dies");
  batch.Delete("e");
  batch.DeleteRange("z", "a");
  batch.DeleteRange("d", "d");
  ASSERT_TRUE(this->store_.Apply(batch, Sync::kNow).ok());
  EXPECT_EQ(this->Scan("a", "z"), (Pairs{{"c", "new"}, {"d", "old"}}));
}

TYPED_TEST(Stores, AgreeWithAMapOnRandomWrites) {
  std::mt19937 random(7);
  const auto key = [&] { return std::string(1 + random() % 2, static_cast<char>(random() % 9)); };
  std::map<std::string, std::string> reference;
  for (int round = 0; round < 200; ++round) {
    WriteBatch batch;
    for (std::uint32_t i = 0; i < random() % 5; ++i) {
      const std::string first = key();
      switch (random() % 4) {
        case 0:
          batch.Delete(first);
          reference.erase(first);
          break;
        case 1: {
          const std::string second = key();
          batch.DeleteRange(first, second);
          std::erase_if(reference, [&](const auto& entry) {
            return first <= entry.first && entry.first < second;
          });
          break;
        }
        default:
          batch.Put(first, std::to_string(round));
          reference[first] = std::to_string(round);
      }
    }
    ASSERT_TRUE(this->store_.Apply(batch, Sync::kLater).ok());
    ASSERT_EQ(this->Scan("", "\xFF"), Pairs(reference.begin(), reference.end())) << round;
  }
}

// A scan sees all keys of a batch or none, and each batch writes the same number to all.
TYPED_TEST(Stores, ShowABatchAsAWhole) {
  const std::vector<std::string> keys = {"a", "m", "z"};
  for (const std::string& key : keys) this->Put(key, "0");
  std::thread writer([&] {
    for (int i = 1; i <= 500; ++i) {
      WriteBatch batch;
      for (const std::string& key : keys) batch.Put(key, std::to_string(i));
      EXPECT_TRUE(this->store_.Apply(batch, Sync::kLater).ok());
    }
  });
  for (int i = 0; i < 200; ++i) {
    const Pairs pairs = this->Scan("a", "zz");
    EXPECT_EQ(pairs.size(), 3U);
    for (const auto& [key, value] : pairs) EXPECT_EQ(value, pairs.front().second);
  }
  writer.join();
}

TYPED_TEST(Stores, KeepTheLargestValueAndRefuseALargerOne) {
  WriteBatch batch;
  batch.Put("small", "1");
  batch.Put("large", std::string(static_cast<std::size_t>(Store::kMaxValueBytes), 'x'));
  ASSERT_TRUE(this->store_.Apply(batch, Sync::kLater).ok());
  const auto large = this->store_.Get("large");
  ASSERT_TRUE(large.ok() && large->has_value());
  EXPECT_EQ(static_cast<std::int64_t>((*large)->size()), Store::kMaxValueBytes);

  WriteBatch refused;
  refused.Put("small", "2");
  refused.Put("larger", std::string(static_cast<std::size_t>(Store::kMaxValueBytes) + 1, 'x'));
  EXPECT_EQ(this->store_.Apply(refused, Sync::kLater).message(),
            "a value has 67108865 bytes; a store takes 67108864");
  EXPECT_EQ(*this->store_.Get("small"), "1");
}

}  // namespace
}  // namespace attnd::server
