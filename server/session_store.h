// What the server keeps of sessions in its store: their records, their logs, and what they held at
// the last checkpoint. How records are named is in store/keys.h, what they hold in
// proto/attnd/store/v1/session_records.proto and, of layers, engine/saved_layer.h.
//
// Two kinds of calls. Those that take a `Done` queue what they write, return at once and may be
// called from anywhere; what is queued is written in that order, and `Done` is called once it is,
// from the thread that writes: it must not block. The others block for as long as reading or
// writing takes.
//
// Thread-safe. Failures: STORE_UNAVAILABLE, which may pass.
#ifndef ATTND_SERVER_SESSION_STORE_H_
#define ATTND_SERVER_SESSION_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attnd/store/v1/session_records.pb.h"
#include "attnd/v1/attention.pb.h"
#include "engine/message_log.h"
#include "server/clock.h"
#include "server/session.h"
#include "server/store/log_writer.h"
#include "server/store/store.h"

namespace attnd::server {

// A published message on its way into a session's log.
struct LogEntry {
  std::uint64_t sequence = 0;
  std::string record;  // of log_record.h; empty: nothing but to wait for what was logged before
  std::vector<engine::TokenSpan> spans;
};

class SessionStore {
 public:
  using Done = std::function<void(const absl::Status&)>;
  enum class After { kGoesOn, kIsLetGo };  // what a session does once it is saved

  // The referenced objects outlive this.
  // `synced`: what is written is on stable storage before it is done.
  SessionStore(Store& store, LogWriter& writer, const Clock& clock, bool synced);

  Store& store() const { return store_; }
  const std::string& boot_id() const { return boot_id_; }

  // ---- Queued

  // The record of a session that is new, was loaded, or has other labels.
  void WriteRecord(const Session& session, const Done& done);
  void Log(const std::shared_ptr<Session>& session, LogEntry entry, Done done);
  // Writes nothing.
  void Wait(const Done& done);
  // Removes everything of a session and remembers why.
  void Remove(const SessionKey& key, std::uint64_t lineage, v1::ErrorReason reason,
              const Done& done);

  // ---- Blocking

  // Makes all that the session holds durable, and its log superfluous. By one thread at a time for
  // a session. OK also where the session was closed meanwhile.
  absl::Status Save(Session& session, After after);
  // What was written before is on stable storage.
  absl::Status Flush();
  // The record of a session that was loaded, with what it found no place for removed: `stale` are
  // segments that no checkpoint counts.
  absl::Status Open(const Session& session, const std::vector<KeyRange>& stale);

 private:
  absl::Status Queue(WriteBatch batch, const Done& done);
  // A session that was closed may have been removed, and must not come back: `done` then gets
  // NOT_FOUND. False in that case.
  bool QueueIfOpen(const Session& session, WriteBatch batch, const Done& done);
  // Writes in the session's order and waits. False where the session was closed before.
  absl::StatusOr<bool> Write(const Session& session, WriteBatch batch);
  absl::StatusOr<bool> SaveSegments(Session& session, std::int64_t layer,
                                    const engine::LayerState& state);
  void PutRecord(const Session& session, After after, WriteBatch& batch) const;

  Store& store_;
  LogWriter& writer_;
  const Clock& clock_;
  const bool synced_;
  const std::string boot_id_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SESSION_STORE_H_
