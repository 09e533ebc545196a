// All sessions that clients can name: those in memory (session_table.h), and those that are in the
// store only and come back when they are used.
//
// Every call answers by a callback, since a session may have to be read, or its end to be written,
// first; where nothing is to be waited for it is called before the function returns. Callbacks are
// called without a lock, from any thread, and must not block.
//
// Thread-safe. Without a store it is the table.
#ifndef ATTND_SERVER_SESSION_DIRECTORY_H_
#define ATTND_SERVER_SESSION_DIRECTORY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "attnd/store/v1/session_records.pb.h"
#include "server/mutex.h"
#include "server/session_loader.h"
#include "server/session_store.h"
#include "server/session_table.h"

namespace attnd::server {

class SessionDirectory {
 public:
  using Then = std::function<void(const absl::StatusOr<SessionPtr>&)>;
  using Done = std::function<void(const absl::Status&)>;

  // The referenced objects outlive the directory; `store` and `loader` may be null, both.
  SessionDirectory(SessionTable& table, SessionStore* store, SessionLoader* loader,
                   const Clock& clock);
  // Calls that still wait for a load are answered with STORE_UNAVAILABLE.
  ~SessionDirectory();
  SessionDirectory(const SessionDirectory&) = delete;
  SessionDirectory& operator=(const SessionDirectory&) = delete;

  // Whoever waits for a session to be read, or asks from now on for one that would have to be,
  // hears SHUTTING_DOWN.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  // The session, in memory. NOT_FOUND with the reason, DAMAGED, STORE_UNAVAILABLE, STATE_BYTES, or
  // QUEUE_FULL where too many wait to be read.
  void Get(const SessionKey& key, Then then) ABSL_LOCKS_EXCLUDED(mutex_);

  // As SessionTable::Create(); a session that is to last is in the store before the answer.
  void Create(const SessionKey& key, SessionPlan plan, Then then);
  // As SessionTable::Update().
  void Update(const SessionKey& key, const absl::Duration* time_to_live,
              const google::protobuf::Map<std::string, std::string>* labels, Then then);
  // As SessionTable::Delete(); the session is gone from the store before the answer.
  void Delete(const SessionKey& key, Done done) ABSL_LOCKS_EXCLUDED(mutex_);

  // Sessions by ascending id, as SessionTable::List() pages them.
  struct Page {
    std::vector<v1::Session> sessions;
    std::string last_id;  // the last one looked at
    bool more = false;
  };
  Page List(const std::string& tenant, const std::string& after, std::int64_t count,
            const google::protobuf::Map<std::string, std::string>& labels)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes sessions whose time has come, wherever they are. Returns the monotonic time of the next
  // expiry.
  std::int64_t ExpireIdle() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A session that is in the store only.
  struct Entry {
    std::uint64_t lineage = 0;
    v1::Session described;
    std::int64_t expiry_nanos = 0;
  };

  // Reads the records of all sessions, and sessions as they are asked for.
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads some more records. False where there are none.
  bool ReadRecords(KeyRange& range) ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads the session that was asked for first. False where there is none.
  bool LoadNext(engine::Scratch& scratch) ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues the removal of what the store holds of a session. Until it is written nobody reads that.
  void Remove(const SessionKey& key, std::uint64_t lineage, v1::ErrorReason reason)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Queues it once more where it has failed. False where it has not.
  bool RemoveAgain(const SessionKey& key) ABSL_LOCKS_EXCLUDED(mutex_);
  void AnswerOnceRemoved(const SessionKey& key, Done done);
  void Note(const SessionKey& key, const store::v1::SessionRecord& record)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // False where it was not there.
  bool Forget(const SessionKey& key, Entry* entry = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(const SessionKey& key, absl::StatusOr<SessionPtr> loaded) ABSL_LOCKS_EXCLUDED(mutex_);
  // Answers with a session once its record is written, where it has one.
  void AnswerOnceWritten(const SessionPtr& session, Then then);

  SessionTable& table_;
  SessionStore* const store_;
  SessionLoader* const loader_;
  const Clock& clock_;

  mutable Mutex mutex_;
  CondVar wake_;
  std::map<SessionKey, Entry> stored_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<std::int64_t, SessionKey>> expiries_ ABSL_GUARDED_BY(mutex_);
  std::map<SessionKey, std::vector<Then>> loads_ ABSL_GUARDED_BY(mutex_);
  std::deque<SessionKey> to_load_ ABSL_GUARDED_BY(mutex_);
  // Removals that are not written.
  struct Removal {
    std::uint64_t lineage = 0;
    v1::ErrorReason reason = v1::UNKNOWN;
    bool failed = false;
  };
  std::map<SessionKey, Removal> removals_ ABSL_GUARDED_BY(mutex_);
  bool all_known_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SESSION_DIRECTORY_H_
