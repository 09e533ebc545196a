// Writes the batches of many sessions to a store, as many at a time as are waiting (group commit):
// one write, and one wait for the disk, serves them all.
//
// A thread takes what is queued, up to max_group_bytes, and applies it as one batch, in the order
// of Write(). Where the store fails in a way that may pass, the same group is tried again, at
// growing intervals; nothing behind it is written before. Once the store has failed for give_up,
// groups fail after one try each, until one succeeds: a session whose batch has failed is no longer
// durable, and its caller must treat it so.
//
// Thread-safe. `done` is called exactly once for each accepted batch, on the writer's thread, in
// the order of Write(), without a lock: it may call Write(), and must not call Stop().
#ifndef ATTND_SERVER_STORE_LOG_WRITER_H_
#define ATTND_SERVER_STORE_LOG_WRITER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "server/clock.h"
#include "server/mutex.h"
#include "server/store/store.h"
#include "server/store/write_batch.h"

namespace attnd::server {

enum class FsyncPolicy {
  kAlways,    // a batch is done once it is on stable storage
  kInterval,  // once it is written; all is on stable storage `interval` after that
  kNever,     // once it is written; the store decides, and Stop()
};

struct LogWriterOptions {
  FsyncPolicy fsync = FsyncPolicy::kAlways;
  std::int64_t interval_nanos = 1'000'000'000;
  std::int64_t max_group_bytes = std::int64_t{8} << 20;  // a larger batch is a group of its own
  std::int64_t max_queued_bytes = std::int64_t{256} << 20;
  std::int64_t min_retry_nanos = 50'000'000;
  std::int64_t max_retry_nanos = 2'000'000'000;
  std::int64_t give_up_nanos = 30'000'000'000;
};

class LogWriter {
 public:
  using Done = std::function<void(const absl::Status& status)>;

  // `store` and `clock` outlive the writer.
  LogWriter(Store& store, const Clock& clock, const LogWriterOptions& options);
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Queues a batch. RESOURCE_EXHAUSTED where it has no place beside those that are queued (an empty
  // queue takes any), INVALID_ARGUMENT where no store takes it, FAILED_PRECONDITION after Stop();
  // `done` is then not called.
  absl::Status Write(WriteBatch batch, Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Of batches that are not done, as WriteBatch counts.
  std::int64_t queued_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // What the store's last write or sync gave.
  absl::Status health() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Writes what is queued, with one try for each group, brings everything to stable storage, and
  // ends the thread. Whether all of it is there: the result of the last sync.
  absl::Status Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    WriteBatch batch;
    Done done;
    std::int64_t bytes = 0;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits for batches, syncing meanwhile where the policy asks for it. False at the end.
  bool NextGroup(std::vector<Entry>& group) ABSL_LOCKS_EXCLUDED(mutex_);
  void Commit(std::vector<Entry>& group) ABSL_LOCKS_EXCLUDED(mutex_);
  // Tries until it succeeds or there is no use in trying.
  absl::Status ApplyPatiently(const WriteBatch& batch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether to try again; waits before it says so.
  bool Retry(const absl::Status& status, std::int64_t& wait_nanos) ABSL_LOCKS_EXCLUDED(mutex_);
  void SyncIfDue() ABSL_LOCKS_EXCLUDED(mutex_);
  void Note(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  Store& store_;
  const Clock& clock_;
  const LogWriterOptions options_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  std::int64_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  // Of the writer's thread alone. Monotonic times.
  std::int64_t failing_since_ = 0;  // while health_ is a failure
  bool failing_ = false;
  bool unsynced_ = false;
  std::int64_t sync_due_ = 0;  // while unsynced_

  std::thread thread_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_STORE_LOG_WRITER_H_
