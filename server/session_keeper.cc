#include "server/session_keeper.h"

#include <new>
#include <string>

#include "absl/time/time.h"
#include "server/error.h"
#include "server/logging.h"

namespace attnd::server {

SessionKeeper::SessionKeeper(SessionTable& table, SessionStore& store, FailureLog& failures,
                             const Clock& clock, std::int64_t interval_nanos)
    : table_(table),
      store_(store),
      failures_(failures),
      clock_(clock),
      interval_nanos_(interval_nanos) {
  thread_ = std::thread([this] { Run(); });
}

SessionKeeper::~SessionKeeper() { Stop(); }

void SessionKeeper::Flush(SessionPtr session, SessionStore::Done done) {
  {
    MutexLock lock(&mutex_);
    if (!stopping_) {
      flushes_.emplace_back(std::move(session), std::move(done));
      wake_.SignalAll();
      return;
    }
  }
  done(RetryableError(v1::SHUTTING_DOWN, "the server is shutting down", absl::Seconds(1)));
}

void SessionKeeper::Stop() {
  {
    MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
    wake_.SignalAll();
  }
  thread_.join();
  FlushQueued();
  SaveAll(SessionStore::After::kIsLetGo);
}

void SessionKeeper::Run() {
  std::int64_t due = clock_.MonotonicNanos() + interval_nanos_;
  mutex_.Lock();
  while (!stopping_) {
    const std::int64_t now = clock_.MonotonicNanos();
    if (flushes_.empty() && now < due) {
      wake_.WaitFor(&mutex_, due - now);
      continue;
    }
    mutex_.Unlock();
    FlushQueued();
    if (now >= due) {
      SaveAll(SessionStore::After::kGoesOn);
      due = clock_.MonotonicNanos() + interval_nanos_;
    }
    mutex_.Lock();
  }
  mutex_.Unlock();
}

void SessionKeeper::FlushQueued() {
  std::deque<std::pair<SessionPtr, SessionStore::Done>> flushes;
  {
    MutexLock lock(&mutex_);
    flushes.swap(flushes_);
  }
  for (const auto& [session, done] : flushes) {
    absl::Status saved = Save(*session, SessionStore::After::kGoesOn);
    done(saved.ok() ? store_.Flush() : saved);
  }
}

absl::Status SessionKeeper::Save(Session& session, SessionStore::After after) {
  try {
    return store_.Save(session, after);
  } catch (const std::bad_alloc&) {
    return OutOfMemory("the machine has no memory to save the session");
  }
}

void SessionKeeper::SaveAll(SessionStore::After after) {
  for (const SessionPtr& session : table_.Lasting()) {
    absl::Status saved = Save(*session, after);
    if (saved.ok()) continue;
    failures_.Write(LogLevel::kError, "checkpoint failed",
                    {{"session", session->key().id}, {"message", std::string(saved.message())}});
  }
}

}  // namespace attnd::server
