// Brings a session back from the store: its last checkpoint, then its log.
//
// What comes back is proven: digests of layers and messages must come out as they were written, and
// whatever does not fit is DAMAGED and never served. A session that may have lost acknowledged
// tokens, because its server did not stop in order, gets a new generation: clients of its former
// life hear of it.
//
// Thread-safe: Load() may run on several threads for different sessions. It reads, computes and
// blocks, so that it belongs on a thread of its own.
#ifndef ATTND_SERVER_SESSION_LOADER_H_
#define ATTND_SERVER_SESSION_LOADER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "attnd/store/v1/session_records.pb.h"
#include "engine/scratch.h"
#include "server/admission.h"
#include "server/options.h"
#include "server/session.h"
#include "server/session_store.h"

namespace attnd::server {

class SessionLoader {
 public:
  // Makes an empty session and reserves its memory.
  using Make = std::function<absl::StatusOr<std::shared_ptr<Session>>(
      const SessionKey& key, SessionPlan plan, const SessionBirth& birth)>;
  using Random = std::function<std::uint64_t()>;

  // The referenced objects outlive the loader.
  SessionLoader(SessionStore& store, const Options& options, StateBudget& budget, Make make,
                Random random);

  // NOT_FOUND with the reason UNKNOWN, EXPIRED or DELETED, DAMAGED, STORE_UNAVAILABLE, or
  // STATE_BYTES where there is no memory for it now.
  absl::StatusOr<std::shared_ptr<Session>> Load(const SessionKey& key, engine::Scratch& scratch);

 private:
  absl::StatusOr<std::shared_ptr<Session>> Restore(const SessionKey& key,
                                                   const store::v1::SessionRecord& record,
                                                   const ConfigHash& hash,
                                                   engine::Scratch& scratch);
  absl::Status LoadCheckpoint(Session& session, engine::Scratch& scratch);
  absl::StatusOr<LayerStatePtr> LoadLayer(const Session& session, std::int64_t layer,
                                          std::int64_t segment_blocks, engine::Scratch& scratch);
  absl::Status ReplayLog(Session& session, engine::Scratch& scratch);
  absl::Status Replay(Session& session, const store::v1::LogRecord& record,
                      engine::Scratch& scratch);
  // Whether tokens may be missing that a server acknowledged.
  bool MayHaveLost(const store::v1::SessionRecord& record) const;

  SessionStore& store_;
  const Options& options_;
  StateBudget& budget_;
  const Make make_;
  const Random random_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_SESSION_LOADER_H_
