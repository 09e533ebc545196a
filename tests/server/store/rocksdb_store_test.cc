// What outlives the process, a torn or damaged file, and a disk that fails for a while.
#include "server/store/rocksdb_store.h"

#include <rocksdb/env.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/failing_file_system.h"
#include "tests/server/store/store_directory.h"

namespace attnd::server {
namespace {

using ::testing::HasSubstr;

constexpr int kBatches = 12;

std::string Key(int batch, int part) {
  return "key" + std::to_string(100 + batch) + (part == 0 ? "a" : "b");
}
std::string Value(int batch) {
  return std::string(300, static_cast<char>('A' + batch % 26)) + std::to_string(batch);
}

absl::Status PutBatch(Store& store, int batch, Sync sync) {
  WriteBatch writes;
  writes.Put(Key(batch, 0), Value(batch));
  writes.Put(Key(batch, 1), Value(batch));
  return store.Apply(writes, sync);
}

// How many batches are there, from the first on; -1 where one is there in part, or behind a gap.
int WholeBatches(const Store& store) {
  int count = 0;
  bool ended = false;
  for (int batch = 0; batch < 10 * kBatches; ++batch) {
    const auto first = store.Get(Key(batch, 0));
    const auto second = store.Get(Key(batch, 1));
    if (!first.ok() || !second.ok() || first->has_value() != second->has_value()) return -1;
    if (!first->has_value()) {
      ended = true;
      continue;
    }
    if (ended || **first != Value(batch) || **second != Value(batch)) return -1;
    ++count;
  }
  return count;
}

TEST(RocksDbStores, KeepEverythingWhenClosed) {
  const StoreDirectory directory;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto store = directory.OpenOrDie();
    EXPECT_EQ(WholeBatches(*store), batch);
    ASSERT_TRUE(PutBatch(*store, batch, Sync::kLater).ok());
    EXPECT_GT(store->Facts().bytes, 0);
    EXPECT_FALSE(store->Facts().dropped_damaged_writes);
  }
}

TEST(RocksDbStores, AreOpenOnce) {
  const StoreDirectory directory;
  const auto store = directory.OpenOrDie();
  const absl::Status second = RocksDbStore::Open({.directory = directory.path()}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(second.message(),
            "store: directory " + directory.path() + " is in use by another process");
}

TEST(RocksDbStores, CannotBeInAFile) {
  const StoreDirectory directory;
  const std::string file = directory.path() + "/file";
  std::ofstream(file) << "x";
  const absl::Status status = RocksDbStore::Open({.directory = file}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(file));
}

// The child runs this test from its beginning, in a process of its own.
TEST(RocksDbStoresDeathTest, KeepEverythingWhenKilled) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr char kVariable[] = "ATTND_TEST_KILLED_STORE";
  if (std::getenv(kVariable) == nullptr) {
    std::string pattern = ::testing::TempDir() + "/attnd_killed_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    ASSERT_EQ(setenv(kVariable, pattern.c_str(), 1), 0);
  }
  const char* const path = std::getenv(kVariable);
  ASSERT_NE(path, nullptr);
  const StoreDirectory directory(path);
  EXPECT_EXIT(
      {
        const auto store = directory.OpenOrDie();
        for (int batch = 0; batch < kBatches; ++batch) {
          if (!PutBatch(*store, batch, Sync::kLater).ok()) _exit(1);
        }
        kill(getpid(), SIGKILL);
      },
      ::testing::KilledBySignal(SIGKILL), "");
  ASSERT_EQ(unsetenv(kVariable), 0);
  const auto store = directory.OpenOrDie();
  EXPECT_EQ(WholeBatches(*store), kBatches);
  EXPECT_FALSE(store->Facts().dropped_damaged_writes);
}

// A directory as a kill leaves it: files of a store that is open.
class LeftOpen : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto store = original_.OpenOrDie();
    for (int batch = 0; batch < kBatches; ++batch) {
      ASSERT_TRUE(PutBatch(*store, batch, Sync::kNow).ok());
    }
    original_.CopyTo(left_);
    log_ = left_.Files(".log").back();
  }

  const StoreDirectory original_;
  const StoreDirectory left_;
  std::filesystem::path log_;
};

TEST_F(LeftOpen, LosesABatchThatIsTornAndNoneBeforeIt) {
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(log_));
  int last = -1;
  for (std::int64_t size = 0; size <= bytes; size += size + 40 < bytes ? 37 : 1) {
    SCOPED_TRACE(size);
    const StoreDirectory torn;
    left_.CopyTo(torn);
    std::filesystem::resize_file(torn.Files(".log").back(), static_cast<std::uintmax_t>(size));
    const auto store = torn.OpenOrDie();
    const int batches = WholeBatches(*store);
    ASSERT_GE(batches, last);
    // Each takes more than its two values and less than 100 bytes beside them.
    ASSERT_GE(batches, size / (2 * 303 + 100));
    EXPECT_FALSE(store->Facts().dropped_damaged_writes);
    ASSERT_TRUE(PutBatch(*store, batches, Sync::kNow).ok());
    EXPECT_EQ(WholeBatches(*store), batches + 1);
    last = batches;
  }
  EXPECT_EQ(last, kBatches);
}

TEST_F(LeftOpen, TellsWhereDamageInsideTheLogCostsBatches) {
  const std::int64_t offset = OffsetOf(log_, Value(5));
  ASSERT_GT(offset, 0);
  FlipByte(log_, offset);
  {
    const auto store = left_.OpenOrDie();
    EXPECT_EQ(WholeBatches(*store), 5);
    EXPECT_TRUE(store->Facts().dropped_damaged_writes);
  }
  const auto again = left_.OpenOrDie();
  EXPECT_EQ(WholeBatches(*again), 5);
  EXPECT_FALSE(again->Facts().dropped_damaged_writes);
}

// In a table as opening writes it, of what the log holds.
TEST_F(LeftOpen, RefusesADamagedBlockAndGivesTheOthers) {
  left_.OpenOrDie().reset();
  const std::vector<std::filesystem::path> tables = left_.Files(".sst");
  ASSERT_EQ(tables.size(), 1U);
  const std::int64_t offset = OffsetOf(tables.front(), Value(1));
  ASSERT_GT(offset, 0);
  FlipByte(tables.front(), offset);
  const auto store = left_.OpenOrDie();
  const auto damaged = store->Get(Key(1, 0));
  EXPECT_EQ(damaged.status().code(), absl::StatusCode::kDataLoss) << damaged.status();
  EXPECT_EQ(*store->Get(Key(kBatches - 1, 1)), Value(kBatches - 1));
  const auto all = [](std::string_view, std::string_view) { return true; };
  EXPECT_EQ(store->Scan("", "z", all).code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(store->Scan(Key(kBatches - 1, 0), "z", all).ok());
}

class FailingDisk : public ::testing::TestWithParam<WriteFailure> {
 protected:
  const StoreDirectory directory_;
  const std::shared_ptr<FailingFileSystem> files_ = std::make_shared<FailingFileSystem>();
  const std::unique_ptr<rocksdb::Env> env_ = rocksdb::NewCompositeEnv(files_);
};

TEST_P(FailingDisk, LosesNothingAndWritesAgainOnceItCan) {
  const bool full = GetParam() == WriteFailure::kNoSpace || GetParam() == WriteFailure::kShortWrite;
  const absl::StatusCode code =
      full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable;
  {
    auto opened = RocksDbStore::Open({.directory = directory_.path(), .env = env_.get()});
    ASSERT_TRUE(opened.ok()) << opened.status();
    Store& store = **opened;
    for (int batch = 0; batch < kBatches; ++batch) {
      ASSERT_TRUE(PutBatch(store, batch, Sync::kNow).ok()) << batch;
      files_->Fail(GetParam());
      for (int attempt = 0; attempt < 3; ++attempt) {
        const absl::Status status = PutBatch(store, batch + 1, Sync::kNow);
        EXPECT_EQ(status.code(), code) << status;
      }
      files_->Fail(WriteFailure::kNone);
      const absl::Status status = PutBatch(store, batch + 1, Sync::kNow);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(WholeBatches(store), batch + 2);
      EXPECT_TRUE(store.Flush().ok());
    }
  }
  EXPECT_EQ(WholeBatches(*directory_.OpenOrDie()), kBatches + 1);
}

TEST_P(FailingDisk, MayFailUntilTheEnd) {
  {
    auto opened = RocksDbStore::Open({.directory = directory_.path(), .env = env_.get()});
    ASSERT_TRUE(opened.ok()) << opened.status();
    ASSERT_TRUE(PutBatch(**opened, 0, Sync::kNow).ok());
    files_->Fail(GetParam());
    EXPECT_FALSE(PutBatch(**opened, 1, Sync::kNow).ok());
    EXPECT_FALSE((*opened)->Flush().ok());
  }
  const auto store = directory_.OpenOrDie();
  // What failed may be there, as a whole.
  EXPECT_GE(WholeBatches(*store), 1);
  EXPECT_FALSE(store->Facts().dropped_damaged_writes);
}

// Writers and syncs meet each other's failures at any moment.
TEST_P(FailingDisk, LosesNothingOfManyWriters) {
  constexpr int kWriters = 3;
  constexpr int kRounds = 30;
  std::vector<std::vector<std::string>> written(kWriters);
  {
    auto opened = RocksDbStore::Open({.directory = directory_.path(), .env = env_.get()});
    ASSERT_TRUE(opened.ok()) << opened.status();
    Store& store = **opened;
    std::atomic<bool> stop = false;
    std::atomic<int> failures = 0;
    std::atomic<int> unheard = kWriters;  // that have written nothing
    std::vector<std::thread> writers;
    for (int writer = 0; writer < kWriters; ++writer) {
      writers.emplace_back([&, writer] {
        for (int i = 0; !stop; ++i) {
          const std::string key = std::to_string(writer) + "/" + std::to_string(i);
          WriteBatch batch;
          batch.Put(key, Value(i));
          const Sync sync = writer == 0 ? Sync::kLater : Sync::kNow;
          if (store.Apply(batch, sync).ok()) {
            std::vector<std::string>& keys = written[static_cast<std::size_t>(writer)];
            if (keys.empty()) --unheard;
            keys.push_back(key);
          } else {
            ++failures;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          if (i % 4 == 0) store.Flush().IgnoreError();
        }
      });
    }
    for (int round = 0; round < kRounds; ++round) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      files_->Fail(GetParam());
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      files_->Fail(WriteFailure::kNone);
    }
    for (int wait = 0; wait < 10'000 && unheard > 0; ++wait) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    stop = true;
    EXPECT_EQ(unheard, 0);
    EXPECT_GT(failures, 0);
    for (std::thread& writer : writers) writer.join();
    EXPECT_TRUE(PutBatch(store, 0, Sync::kNow).ok());
  }
  const auto store = directory_.OpenOrDie();
  for (const std::vector<std::string>& keys : written) {
    for (const std::string& key : keys) {
      const auto value = store->Get(key);
      ASSERT_TRUE(value.ok() && value->has_value()) << key;
    }
  }
}

class FullDisk : public FailingDisk {};

TEST_P(FullDisk, IsReadMeanwhile) {
  auto opened = RocksDbStore::Open({.directory = directory_.path(), .env = env_.get()});
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_TRUE(PutBatch(**opened, 0, Sync::kNow).ok());
  files_->Fail(GetParam());
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_FALSE(PutBatch(**opened, 1, Sync::kNow).ok());
    EXPECT_EQ(*(*opened)->Get(Key(0, 0)), Value(0));
  }
  files_->Fail(WriteFailure::kNone);
}

INSTANTIATE_TEST_SUITE_P(Failures, FailingDisk,
                         ::testing::Values(WriteFailure::kNoSpace, WriteFailure::kIoError,
                                           WriteFailure::kSyncError, WriteFailure::kShortWrite));
INSTANTIATE_TEST_SUITE_P(Failures, FullDisk,
                         ::testing::Values(WriteFailure::kNoSpace, WriteFailure::kShortWrite));

}  // namespace
}  // namespace attnd::server
