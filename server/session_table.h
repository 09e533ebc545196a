// All sessions of the process, by tenant and id: creation that is safe to retry, lookup that says
// why a session is gone, and expiry of idle ones.
//
// Thread-safe. The lock is held for lookups and bookkeeping only; sessions are destroyed outside
// it. Expiry does not poll: ExpireIdle() tells when it is worth calling again.
#ifndef ATTND_SERVER_SESSION_TABLE_H_
#define ATTND_SERVER_SESSION_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "server/admission.h"
#include "server/clock.h"
#include "server/metrics.h"
#include "server/mutex.h"
#include "server/options.h"
#include "server/scheduler.h"
#include "server/session.h"
#include "server/tombstones.h"

namespace attnd::server {

using SessionPtr = std::shared_ptr<Session>;

class SessionTable {
 public:
  // Draws a 64-bit number; injected so that tests are repeatable. Called under a lock.
  using Random = std::function<std::uint64_t()>;

  // The referenced objects outlive the table.
  SessionTable(const Options& options, const Clock& clock, Scheduler& scheduler,
               StateBudget& budget, Metrics& metrics, Random random);

  // A new session, or the one that exists under this id with an equal configuration (mutable fields
  // aside). SESSION_EXISTS, TOO_MANY_SESSIONS or STATE_BYTES otherwise.
  absl::StatusOr<SessionPtr> Create(const SessionKey& key, SessionPlan plan)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // NOT_FOUND with the reason UNKNOWN, EXPIRED or DELETED.
  absl::StatusOr<SessionPtr> Find(const SessionKey& key) ABSL_LOCKS_EXCLUDED(mutex_);

  // Changes the mutable fields; null leaves a field as it is. NOT_FOUND as in Find.
  absl::StatusOr<SessionPtr> Update(const SessionKey& key, const absl::Duration* time_to_live,
                                    const google::protobuf::Map<std::string, std::string>* labels)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // OK also where the session has been deleted or has expired before.
  absl::Status Delete(const SessionKey& key) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sessions of a tenant with ids after `after`, ascending, that carry the labels: up to `count`,
  // and no more than are found among the next 1,000.
  struct Page {
    std::vector<SessionPtr> sessions;
    std::string last_id;  // the last one looked at
    bool more = false;    // whether there are ids after it
  };
  Page List(const std::string& tenant, const std::string& after, std::int64_t count,
            const google::protobuf::Map<std::string, std::string>& labels)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes sessions whose time has come. Returns the monotonic time of the next expiry, which may
  // come later if the session is used; INT64_MAX without sessions.
  std::int64_t ExpireIdle() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends all waits for positions, in all sessions.
  void EndWaits(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mutex_);

  std::int64_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

  // A session that is not in the table yet; its memory is reserved. STATE_BYTES.
  absl::StatusOr<SessionPtr> Make(const SessionKey& key, SessionPlan plan,
                                  const SessionBirth& birth) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes in a session that was made and loaded; or the one that is there under its key.
  // TOO_MANY_SESSIONS.
  absl::StatusOr<SessionPtr> Adopt(const SessionPtr& session) ABSL_LOCKS_EXCLUDED(mutex_);
  // The sessions that are not EPHEMERAL.
  std::vector<SessionPtr> Lasting() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Called for each session that is deleted or expires, once it is closed and before its id can be
  // used again: under the lock, so that it must not call the table or block.
  void WhenGone(std::function<void(const Session&, v1::ErrorReason)> gone)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Not 0.
  std::uint64_t NewGeneration() ABSL_LOCKS_EXCLUDED(mutex_);

  // A fresh id for a client that sent none.
  std::string NewId() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Entry {
    SessionPtr session;
    // Its place in expiries_: the expiry it had when it was last looked at.
    std::int64_t expiry_nanos = 0;
  };
  using Entries = std::map<SessionKey, Entry>;

  // Takes the session out of the table; the caller buries it outside the lock.
  SessionPtr Remove(Entries::iterator found, v1::ErrorReason reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<SessionPtr> MakeLocked(const SessionKey& key, SessionPlan plan,
                                        const SessionBirth& birth)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::uint64_t NewNumber() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Full() const;
  void SetExpiry(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Gone(const SessionKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Bury(const SessionPtr& session, v1::ErrorReason reason);

  const Options& options_;
  const Clock& clock_;
  Scheduler& scheduler_;
  StateBudget& budget_;
  Metrics& metrics_;

  mutable Mutex mutex_;
  Random random_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const Session&, v1::ErrorReason)> gone_ ABSL_GUARDED_BY(mutex_);
  Entries sessions_ ABSL_GUARDED_BY(mutex_);
  Tombstones tombstones_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<std::int64_t, SessionKey>> expiries_ ABSL_GUARDED_BY(mutex_);
  std::uint64_t next_flow_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SESSION_TABLE_H_
