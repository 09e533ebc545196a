// Groups, their order, the store's failures, and when things are on stable storage.
#include "server/store/log_writer.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/store/memory_store.h"
#include "tests/server/fake_clock.h"

namespace attnd::server {
namespace {

using ::testing::ElementsAre;

constexpr std::int64_t kMillisecond = 1'000'000;

// A store that counts what it is asked, and can be closed, so that calls wait, or made to fail.
class WatchedStore final : public Store {
 public:
  absl::Status Apply(const WriteBatch& batch, Sync sync) override {
    MutexLock lock(&mutex_);
    ++applies_;
    if (sync == Sync::kNow) ++syncs_;
    changed_.SignalAll();
    while (closed_) changed_.Wait(&mutex_);
    if (!failure_.ok()) return failure_;
    return store_.Apply(batch, sync);
  }
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) const override {
    return store_.Get(key);
  }
  absl::Status Scan(const std::string& from, const std::string& until,
                    const Visitor& visitor) const override {
    return store_.Scan(from, until, visitor);
  }
  absl::Status Flush() override {
    MutexLock lock(&mutex_);
    ++flushes_;
    changed_.SignalAll();
    return failure_;
  }
  StoreFacts Facts() const override { return store_.Facts(); }

  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
  }
  void Open() {
    MutexLock lock(&mutex_);
    closed_ = false;
    changed_.SignalAll();
  }
  void Fail(absl::Status failure) {
    MutexLock lock(&mutex_);
    failure_ = std::move(failure);
  }
  int applies() const {
    MutexLock lock(&mutex_);
    return applies_;
  }
  int syncs() const {
    MutexLock lock(&mutex_);
    return syncs_;
  }
  int flushes() const {
    MutexLock lock(&mutex_);
    return flushes_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  MemoryStore store_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  int applies_ ABSL_GUARDED_BY(mutex_) = 0;
  int syncs_ ABSL_GUARDED_BY(mutex_) = 0;
  int flushes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Whether it comes true within ten seconds.
template <typename Condition>
bool Eventually(const Condition& condition) {
  for (int i = 0; i < 10'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

WriteBatch Put(const std::string& key, const std::string& value) {
  WriteBatch batch;
  batch.Put(key, value);
  return batch;
}

class LogWriters : public ::testing::Test {
 protected:
  // Writes and waits.
  absl::Status WriteNow(LogWriter& writer, const std::string& key) {
    std::promise<absl::Status> result;
    const absl::Status queued =
        writer.Write(Put(key, "v"), [&](const absl::Status& status) { result.set_value(status); });
    if (!queued.ok()) return queued;
    return result.get_future().get();
  }
  // Writes; the result's code goes to results_.
  absl::Status WriteLater(LogWriter& writer, const std::string& key, std::size_t bytes = 1) {
    return writer.Write(Put(key, std::string(bytes, 'v')), [this, key](const absl::Status& status) {
      MutexLock lock(&mutex_);
      results_.push_back(key + (status.ok() ? "" : " failed"));
    });
  }
  std::vector<std::string> results() {
    MutexLock lock(&mutex_);
    return results_;
  }
  // Writes `key` while the store is closed, so that what is written next waits.
  void Occupy(LogWriter& writer, const std::string& key) {
    store_.Close();
    ASSERT_TRUE(WriteLater(writer, key).ok());
    ASSERT_TRUE(Eventually([&] { return store_.applies() == 1; }));
  }

  FakeClock clock_;
  WatchedStore store_;
  Mutex mutex_;
  std::vector<std::string> results_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(LogWriters, WriteWhatWaitsAsOneGroupInOrder) {
  LogWriter writer(store_, clock_, {});
  Occupy(writer, "first");
  std::vector<std::string> expected = {"first"};
  for (int i = 0; i < 50; ++i) {
    expected.push_back(std::to_string(i));
    ASSERT_TRUE(WriteLater(writer, expected.back()).ok());
  }
  // A later write of a group overrides an earlier one.
  ASSERT_TRUE(writer.Write(Put("0", "new"), [](const absl::Status&) {}).ok());
  EXPECT_GT(writer.queued_bytes(), 51 * WriteBatch::kWriteBytes);
  EXPECT_TRUE(results().empty());
  store_.Open();
  EXPECT_TRUE(writer.Stop().ok());
  EXPECT_EQ(results(), expected);
  EXPECT_EQ(store_.applies(), 2);
  EXPECT_EQ(store_.syncs(), 2);
  EXPECT_EQ(writer.queued_bytes(), 0);
  EXPECT_EQ(*store_.Get("0"), "new");
  EXPECT_EQ(*store_.Get("49"), "v");
}

TEST_F(LogWriters, BoundAGroup) {
  LogWriterOptions options;
  options.max_group_bytes = 2000;
  LogWriter writer(store_, clock_, options);
  Occupy(writer, "first");
  // Three of about 600 bytes fit; the large one is a group of its own.
  for (const char* key : {"a", "b", "c", "d"}) ASSERT_TRUE(WriteLater(writer, key, 500).ok());
  ASSERT_TRUE(WriteLater(writer, "large", 5000).ok());
  store_.Open();
  EXPECT_TRUE(writer.Stop().ok());
  EXPECT_EQ(store_.applies(), 4);
  EXPECT_THAT(results(), ElementsAre("first", "a", "b", "c", "d", "large"));
}

TEST_F(LogWriters, RefuseWhatTheQueueHasNoPlaceFor) {
  LogWriterOptions options;
  options.max_queued_bytes = 1000;
  LogWriter writer(store_, clock_, options);
  store_.Close();
  ASSERT_TRUE(WriteLater(writer, "large", 5000).ok());  // takes the empty queue
  const absl::Status refused = WriteLater(writer, "b");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(),
            "a batch of 98 bytes for the log; 5101 are queued, the limit is 1000");
  store_.Open();
  ASSERT_TRUE(Eventually([&] { return writer.queued_bytes() == 0; }));
  ASSERT_TRUE(WriteLater(writer, "c").ok());
  EXPECT_TRUE(writer.Stop().ok());
  EXPECT_THAT(results(), ElementsAre("large", "c"));
}

TEST_F(LogWriters, RefuseWhatNoStoreTakesWithoutHarmToOthers) {
  LogWriter writer(store_, clock_, {});
  WriteBatch batch;
  batch.Put("a", std::string(static_cast<std::size_t>(Store::kMaxValueBytes) + 1, 'x'));
  EXPECT_EQ(writer.Write(std::move(batch), [](const absl::Status&) { FAIL(); }).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(WriteNow(writer, "b").ok());
}

TEST_F(LogWriters, TryAgainUntilTheStoreRecovers) {
  LogWriterOptions options;
  options.min_retry_nanos = kMillisecond;
  options.max_retry_nanos = 4 * kMillisecond;
  LogWriter writer(store_, clock_, options);
  store_.Fail(absl::ResourceExhaustedError("full"));
  ASSERT_TRUE(WriteLater(writer, "a").ok());
  ASSERT_TRUE(WriteLater(writer, "b").ok());
  ASSERT_TRUE(Eventually([&] {
    clock_.Advance(absl::Milliseconds(4));
    return store_.applies() >= 5;
  }));
  EXPECT_TRUE(results().empty());
  EXPECT_EQ(writer.health().message(), "full");
  EXPECT_GT(writer.queued_bytes(), 0);
  store_.Fail(absl::OkStatus());
  ASSERT_TRUE(Eventually([&] {
    clock_.Advance(absl::Milliseconds(4));
    return results().size() == 2;
  }));
  EXPECT_THAT(results(), ElementsAre("a", "b"));
  EXPECT_TRUE(writer.health().ok());
}

TEST_F(LogWriters, WaitLongerFromTryToTry) {
  LogWriterOptions options;
  options.min_retry_nanos = 50 * kMillisecond;
  LogWriter writer(store_, clock_, options);
  store_.Fail(absl::UnavailableError("broken"));
  ASSERT_TRUE(WriteLater(writer, "a").ok());
  ASSERT_TRUE(Eventually([&] { return store_.applies() == 1; }));
  for (const int wait : {50, 100, 200}) {
    const int applies = store_.applies();
    clock_.Advance(absl::Milliseconds(wait - 1));
    std::this_thread::sleep_for(std::chrono::milliseconds(wait + 20));
    EXPECT_EQ(store_.applies(), applies);
    clock_.Advance(absl::Milliseconds(1));
    ASSERT_TRUE(Eventually([&] { return store_.applies() == applies + 1; })) << wait;
  }
}

TEST_F(LogWriters, GiveUpOnAStoreThatStaysBroken) {
  LogWriterOptions options;
  options.min_retry_nanos = kMillisecond;
  options.give_up_nanos = 100 * kMillisecond;
  LogWriter writer(store_, clock_, options);
  store_.Fail(absl::UnavailableError("broken"));
  ASSERT_TRUE(WriteLater(writer, "a").ok());
  ASSERT_TRUE(Eventually([&] {
    clock_.Advance(absl::Milliseconds(10));
    return results().size() == 1;
  }));
  EXPECT_THAT(results(), ElementsAre("a failed"));
  // From then on one try each, until one succeeds.
  const int applies = store_.applies();
  EXPECT_EQ(WriteNow(writer, "b").message(), "broken");
  EXPECT_EQ(store_.applies(), applies + 1);
  store_.Fail(absl::OkStatus());
  EXPECT_TRUE(WriteNow(writer, "c").ok());
  EXPECT_TRUE(writer.health().ok());
  EXPECT_EQ(*store_.Get("b"), std::nullopt);
}

TEST_F(LogWriters, DoNotRepeatWhatCannotSucceed) {
  LogWriter writer(store_, clock_, {});
  store_.Fail(absl::DataLossError("damaged"));
  EXPECT_EQ(WriteNow(writer, "a").message(), "damaged");
  EXPECT_EQ(store_.applies(), 1);
}

TEST_F(LogWriters, SyncOncePerInterval) {
  LogWriterOptions options;
  options.fsync = FsyncPolicy::kInterval;
  options.interval_nanos = 20 * kMillisecond;
  LogWriter writer(store_, clock_, options);
  for (int round = 1; round <= 3; ++round) {
    for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(WriteNow(writer, key).ok());
    clock_.Advance(absl::Milliseconds(19));
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    EXPECT_EQ(store_.flushes(), round - 1);
    clock_.Advance(absl::Milliseconds(1));
    ASSERT_TRUE(Eventually([&] { return store_.flushes() == round; }));
    // Nothing is written, so there is nothing to sync.
    clock_.Advance(absl::Milliseconds(100));
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    EXPECT_EQ(store_.flushes(), round);
  }
  EXPECT_EQ(store_.syncs(), 0);
}

TEST_F(LogWriters, SyncAgainAfterASyncThatFailed) {
  LogWriterOptions options;
  options.fsync = FsyncPolicy::kInterval;
  options.interval_nanos = 5 * kMillisecond;
  LogWriter writer(store_, clock_, options);
  ASSERT_TRUE(WriteNow(writer, "a").ok());
  store_.Fail(absl::UnavailableError("broken"));
  ASSERT_TRUE(Eventually([&] {
    clock_.Advance(absl::Milliseconds(5));
    return store_.flushes() >= 2;
  }));
  EXPECT_EQ(writer.health().message(), "broken");
  store_.Fail(absl::OkStatus());
  ASSERT_TRUE(Eventually([&] {
    clock_.Advance(absl::Milliseconds(5));
    return writer.health().ok();
  }));
}

TEST_F(LogWriters, WithoutAPolicySyncAtTheEnd) {
  LogWriterOptions options;
  options.fsync = FsyncPolicy::kNever;
  LogWriter writer(store_, clock_, options);
  EXPECT_TRUE(WriteNow(writer, "a").ok());
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(WriteNow(writer, "b").ok());
  EXPECT_EQ(store_.flushes(), 0);
  EXPECT_EQ(store_.syncs(), 0);
  EXPECT_TRUE(writer.Stop().ok());
  EXPECT_EQ(store_.flushes(), 1);
}

TEST_F(LogWriters, StopDoesNotWaitForABrokenStore) {
  LogWriter writer(store_, clock_, {});
  store_.Fail(absl::UnavailableError("broken"));
  ASSERT_TRUE(WriteLater(writer, "a").ok());
  ASSERT_TRUE(Eventually([&] { return store_.applies() == 1; }));
  ASSERT_TRUE(WriteLater(writer, "b").ok());
  EXPECT_EQ(writer.Stop().message(), "broken");
  EXPECT_THAT(results(), ElementsAre("a failed", "b failed"));
  EXPECT_EQ(WriteLater(writer, "c").code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(LogWriters, CanBeWrittenToByACallback) {
  LogWriter writer(store_, clock_, {});
  std::promise<absl::Status> second;
  ASSERT_TRUE(writer
                  .Write(Put("a", "1"),
                         [&](const absl::Status&) {
                           EXPECT_TRUE(writer
                                           .Write(Put("b", "2"),
                                                  [&](const absl::Status& status) {
                                                    second.set_value(status);
                                                  })
                                           .ok());
                         })
                  .ok());
  EXPECT_TRUE(second.get_future().get().ok());
  EXPECT_EQ(*store_.Get("b"), "2");
}

}  // namespace
}  // namespace attnd::server
