#include "server/store/log_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attnd::server {
namespace {

// Of a wait for nothing but a signal.
constexpr std::int64_t kLongNanos = 3'600'000'000'000;

bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

}  // namespace

LogWriter::LogWriter(Store& store, const Clock& clock, const LogWriterOptions& options)
    : store_(store), clock_(clock), options_(options), thread_([this] { Run(); }) {}

LogWriter::~LogWriter() { Stop().IgnoreError(); }

absl::Status LogWriter::Write(WriteBatch batch, Done done) {
  if (absl::Status status = CheckLimits(batch); !status.ok()) return status;
  const std::int64_t bytes = batch.bytes();
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::FailedPreconditionError("the log has been closed");
    if (queued_bytes_ > 0 && bytes > options_.max_queued_bytes - queued_bytes_) {
      return absl::ResourceExhaustedError(absl::StrCat("a batch of ", bytes, " bytes for the log; ",
                                                       queued_bytes_, " are queued, the limit is ",
                                                       options_.max_queued_bytes));
    }
    queued_bytes_ += bytes;
    queue_.push_back({std::move(batch), std::move(done), bytes});
  }
  wake_.Signal();
  return absl::OkStatus();
}

std::int64_t LogWriter::queued_bytes() const {
  MutexLock lock(&mutex_);
  return queued_bytes_;
}

absl::Status LogWriter::health() const {
  MutexLock lock(&mutex_);
  return health_;
}

absl::Status LogWriter::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  wake_.SignalAll();
  if (thread_.joinable()) {
    thread_.join();
    Note(store_.Flush());
  }
  return health();
}

void LogWriter::Run() {
  std::vector<Entry> group;
  while (NextGroup(group)) {
    Commit(group);
    group.clear();
    SyncIfDue();
  }
}

bool LogWriter::NextGroup(std::vector<Entry>& group) {
  for (;;) {
    {
      MutexLock lock(&mutex_);
      const bool timed = unsynced_ && options_.fsync == FsyncPolicy::kInterval;
      while (queue_.empty() && !stopping_) {
        const std::int64_t left = timed ? sync_due_ - clock_.MonotonicNanos() : kLongNanos;
        if (left <= 0) break;
        wake_.WaitFor(&mutex_, left);
      }
      std::int64_t bytes = 0;
      while (!queue_.empty() &&
             (group.empty() || bytes + queue_.front().bytes <= options_.max_group_bytes)) {
        bytes += queue_.front().bytes;
        group.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
      if (!group.empty()) return true;
      if (stopping_) return false;
    }
    SyncIfDue();
  }
}

void LogWriter::Commit(std::vector<Entry>& group) {
  WriteBatch batch;
  std::int64_t bytes = 0;
  for (Entry& entry : group) {
    bytes += entry.bytes;
    batch.Take(entry.batch);
  }
  const absl::Status status = ApplyPatiently(batch);
  if (status.ok() && options_.fsync == FsyncPolicy::kInterval && !unsynced_) {
    unsynced_ = true;
    sync_due_ = clock_.MonotonicNanos() + options_.interval_nanos;
  }
  {
    MutexLock lock(&mutex_);
    queued_bytes_ -= bytes;
  }
  for (const Entry& entry : group) entry.done(status);
}

absl::Status LogWriter::ApplyPatiently(const WriteBatch& batch) {
  const Sync sync = options_.fsync == FsyncPolicy::kAlways ? Sync::kNow : Sync::kLater;
  std::int64_t wait_nanos = options_.min_retry_nanos;
  for (;;) {
    absl::Status status = store_.Apply(batch, sync);
    Note(status);
    if (!Retry(status, wait_nanos)) return status;
  }
}

bool LogWriter::Retry(const absl::Status& status, std::int64_t& wait_nanos) {
  if (!MayPass(status)) return false;
  const std::int64_t give_up = failing_since_ + options_.give_up_nanos;
  const std::int64_t now = clock_.MonotonicNanos();
  const std::int64_t again = std::min(now + wait_nanos, give_up);
  wait_nanos = std::min(2 * wait_nanos, options_.max_retry_nanos);
  MutexLock lock(&mutex_);
  if (now >= give_up) return false;
  while (!stopping_) {
    const std::int64_t left = again - clock_.MonotonicNanos();
    if (left <= 0) return true;
    wake_.WaitFor(&mutex_, left);
  }
  return false;
}

void LogWriter::SyncIfDue() {
  if (options_.fsync != FsyncPolicy::kInterval || !unsynced_) return;
  const std::int64_t now = clock_.MonotonicNanos();
  if (now < sync_due_) return;
  const absl::Status status = store_.Flush();
  Note(status);
  unsynced_ = !status.ok();
  sync_due_ = now + options_.interval_nanos;
}

void LogWriter::Note(const absl::Status& status) {
  if (!status.ok() && !failing_) failing_since_ = clock_.MonotonicNanos();
  failing_ = !status.ok();
  MutexLock lock(&mutex_);
  health_ = status;
}

}  // namespace attnd::server
