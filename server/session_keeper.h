// Saves sessions from time to time, so that their logs stay short and their durable positions
// follow, and all of them when the server stops in order.
//
// A thread of its own. Thread-safe.
#ifndef ATTND_SERVER_SESSION_KEEPER_H_
#define ATTND_SERVER_SESSION_KEEPER_H_

#include <cstdint>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/clock.h"
#include "server/failure_log.h"
#include "server/mutex.h"
#include "server/session_store.h"
#include "server/session_table.h"

namespace attnd::server {

class SessionKeeper {
 public:
  // The referenced objects outlive the keeper.
  SessionKeeper(SessionTable& table, SessionStore& store, FailureLog& failures, const Clock& clock,
                std::int64_t interval_nanos);
  ~SessionKeeper();
  SessionKeeper(const SessionKeeper&) = delete;
  SessionKeeper& operator=(const SessionKeeper&) = delete;

  // Saves the session as it is now, to stable storage; `done` is called from the keeper's thread
  // and must not block.
  void Flush(SessionPtr session, SessionStore::Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Saves every session for the last time; nothing is published any more.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void SaveAll(SessionStore::After after) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Save(Session& session, SessionStore::After after);
  void FlushQueued() ABSL_LOCKS_EXCLUDED(mutex_);

  SessionTable& table_;
  SessionStore& store_;
  FailureLog& failures_;
  const Clock& clock_;
  const std::int64_t interval_nanos_;

  Mutex mutex_;
  CondVar wake_;
  std::deque<std::pair<SessionPtr, SessionStore::Done>> flushes_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SESSION_KEEPER_H_
