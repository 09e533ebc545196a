#include "server/session_store.h"

#include <algorithm>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/saved_layer.h"
#include "server/error.h"
#include "server/mutex.h"
#include "server/proto_time.h"
#include "server/store/keys.h"
#include "server/store/record.h"
#include "server/tombstones.h"

namespace attnd::server {
namespace {

constexpr absl::Duration kRetryDelay = absl::Seconds(1);
// A segment is written, and read again, in one piece.
constexpr std::int64_t kMostSegmentBytes = std::int64_t{4} << 20;

absl::Status Unavailable(const absl::Status& status) {
  if (status.ok()) return status;
  return RetryableError(v1::STORE_UNAVAILABLE,
                        absl::StrCat("the store fails: ", std::string(status.message())),
                        kRetryDelay);
}

// By which a crash of the machine is told from one of the process; "" where the system does not
// say.
std::string ReadBootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

// Waits for what a queue calls from its own thread.
class Waiter {
 public:
  void Set(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    status_ = status;
    set_ = true;
    changed_.SignalAll();
  }
  absl::Status Wait() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    while (!set_) changed_.Wait(&mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool set_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

void Put(const Session& session, RecordKind kind, const std::string& key,
         const std::string& payload, WriteBatch& batch) {
  batch.Put(key, EncodeRecord(kind, key, session.config_hash(), payload));
}

store::v1::CheckpointRecord CheckpointOf(const Session& session, const SessionSnapshot& snapshot,
                                         const std::vector<std::int64_t>& segment_blocks) {
  store::v1::CheckpointRecord record;
  record.set_sequence(snapshot.sequence);
  record.mutable_segment_blocks()->Add(segment_blocks.begin(), segment_blocks.end());
  for (const LayerStatePtr& state : snapshot.layers) record.add_layer_positions(state->position());
  record.set_messages(snapshot.messages.Save());
  for (std::int64_t layer = 0; layer < session.layers(); ++layer) {
    const StepAnswer& step = snapshot.steps[static_cast<std::size_t>(layer)];
    if (!step.response) continue;
    store::v1::StepAnswer& answer = *record.add_steps();
    answer.set_layer(static_cast<std::int32_t>(layer));
    answer.set_digest_high(step.digest.high);
    answer.set_digest_low(step.digest.low);
    *answer.mutable_response() = *step.response;
  }
  return record;
}

}  // namespace

SessionStore::SessionStore(Store& store, LogWriter& writer, const Clock& clock, bool synced)
    : store_(store), writer_(writer), clock_(clock), synced_(synced), boot_id_(ReadBootId()) {}

absl::Status SessionStore::Queue(WriteBatch batch, const Done& done) {
  return Unavailable(writer_.Write(
      std::move(batch), [done](const absl::Status& status) { done(Unavailable(status)); }));
}

bool SessionStore::QueueIfOpen(const Session& session, WriteBatch batch, const Done& done) {
  absl::Status queued;
  const bool open = session.RunIfOpen([&] { queued = Queue(std::move(batch), done); });
  if (!open) queued = GoneError(session.key().id, v1::DELETED);
  if (!queued.ok()) done(queued);
  return open;
}

void SessionStore::WriteRecord(const Session& session, const Done& done) {
  WriteBatch batch;
  PutRecord(session, After::kGoesOn, batch);
  QueueIfOpen(session, std::move(batch), done);
}

void SessionStore::Log(const std::shared_ptr<Session>& session, LogEntry entry, Done done) {
  const bool logged = !entry.record.empty();
  WriteBatch batch;
  if (logged) {
    const std::string key =
        LogKey(session->key().tenant, session->key().id, session->lineage(), entry.sequence);
    Put(*session, RecordKind::kLog, key, entry.record, batch);
  }
  const auto written = [session, logged, sequence = entry.sequence, spans = std::move(entry.spans),
                        done = std::move(done)](const absl::Status& status) {
    if (!status.ok()) {
      if (logged) session->NoteLogBroken(status);
      done(status);
      return;
    }
    // Behind a gap in the log it is as if it were not there.
    const absl::Status log = session->log_status();
    if (log.ok() && logged) session->NoteLogged(sequence, spans);
    done(log);
  };
  QueueIfOpen(*session, std::move(batch), written);
}

void SessionStore::Wait(const Done& done) {
  absl::Status queued = Queue({}, done);
  if (!queued.ok()) done(queued);
}

void SessionStore::Remove(const SessionKey& key, std::uint64_t lineage, v1::ErrorReason reason,
                          const Done& done) {
  WriteBatch batch;
  for (const KeyRange& range : AllOfSession(key.tenant, key.id)) {
    batch.DeleteRange(range.from, range.until);
  }
  const KeyRange segments = SegmentsOfLineage(key.tenant, lineage);
  batch.DeleteRange(segments.from, segments.until);
  store::v1::TombstoneRecord tombstone;
  tombstone.set_reason(reason);
  *tombstone.mutable_time() = ToProto(clock_.WallNow());
  const std::string name = TombstoneKey(key.tenant, key.id);
  batch.Put(name, EncodeRecord(RecordKind::kTombstone, name, {}, tombstone.SerializeAsString()));
  absl::Status queued = Queue(std::move(batch), done);
  if (!queued.ok()) done(queued);
}

absl::StatusOr<bool> SessionStore::Write(const Session& session, WriteBatch batch) {
  const auto waiter = std::make_shared<Waiter>();
  const bool open = QueueIfOpen(session, std::move(batch),
                                [waiter](const absl::Status& status) { waiter->Set(status); });
  if (!open) return false;
  absl::Status written = waiter->Wait();
  if (!written.ok()) return written;
  return true;
}

absl::Status SessionStore::Save(Session& session, After after) {
  const SessionSnapshot snapshot = session.Snapshot();
  Session::Extent& extent = session.extent();
  if (snapshot.sequence == extent.sequence && after == After::kGoesOn) return absl::OkStatus();
  WriteBatch batch;
  std::vector<std::int64_t> positions;
  for (std::int64_t layer = 0; layer < session.layers(); ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    const engine::LayerState& state = *snapshot.layers[at];
    positions.push_back(state.position());
    if (state.position() == extent.root_positions[at]) continue;
    absl::StatusOr<bool> saved = SaveSegments(session, layer, state);
    if (!saved.ok() || !*saved) return saved.status();
    const engine::Engine& engine = session.engine(layer);
    // What a window has passed goes with the checkpoint that does without it. A segment that begins
    // before the first kept block may hold that.
    const std::int64_t passed = (engine.keeps_rows() ? engine.FirstKeptBlock(*state.sealed) : 0) -
                                engine::kMostSegmentBlocks;
    if (passed > 0) {
      batch.DeleteRange(SegmentKey(session.key().tenant, session.lineage(), layer, 0),
                        SegmentKey(session.key().tenant, session.lineage(), layer, passed));
    }
    absl::StatusOr<std::string> root = engine::SaveRoot(engine, state);
    if (!root.ok()) return root.status();
    const std::string key =
        LayerRootKey(session.key().tenant, session.key().id, session.lineage(), layer);
    Put(session, RecordKind::kLayerRoot, key, *root, batch);
  }
  const std::string key = CheckpointKey(session.key().tenant, session.key().id, session.lineage());
  Put(session, RecordKind::kCheckpoint, key,
      CheckpointOf(session, snapshot, extent.segment_blocks).SerializeAsString(), batch);
  const KeyRange log =
      LogUpTo(session.key().tenant, session.key().id, session.lineage(), snapshot.sequence);
  batch.DeleteRange(log.from, log.until);
  PutRecord(session, after, batch);
  absl::StatusOr<bool> written = Write(session, std::move(batch));
  if (!written.ok() || !*written) return written.status();
  extent.sequence = snapshot.sequence;
  extent.root_positions = std::move(positions);
  session.NoteSaved(snapshot);
  return absl::OkStatus();
}

// Blocks that no segment holds yet. A segment that was written before the checkpoint that counts it
// has failed is written again under the same key.
absl::StatusOr<bool> SessionStore::SaveSegments(Session& session, std::int64_t layer,
                                                const engine::LayerState& state) {
  const engine::Engine& engine = session.engine(layer);
  if (!engine.keeps_rows()) return true;
  const std::int64_t blocks = state.sealed_tokens / engine::kBlockTokens;
  std::int64_t& saved = session.extent().segment_blocks[static_cast<std::size_t>(layer)];
  const std::int64_t first = engine.FirstKeptBlock(*state.sealed);
  saved = std::max(saved, first);
  const std::int64_t block_bytes =
      std::max<std::int64_t>(engine.bytes_per_token() * engine::kBlockTokens, 1);
  const std::int64_t most =
      std::clamp<std::int64_t>(kMostSegmentBytes / block_bytes, 1, engine::kMostSegmentBlocks);
  while (saved < blocks) {
    const std::int64_t count = std::min(most, blocks - saved);
    absl::StatusOr<std::string> bytes = engine::SaveSegment(engine, state, saved, count);
    if (!bytes.ok()) return bytes.status();
    WriteBatch batch;
    const std::string key = SegmentKey(session.key().tenant, session.lineage(), layer, saved);
    Put(session, RecordKind::kSegment, key, *bytes, batch);
    absl::StatusOr<bool> written = Write(session, std::move(batch));
    if (!written.ok() || !*written) return written;
    saved += count;
  }
  return true;
}

absl::Status SessionStore::Flush() { return Unavailable(store_.Flush()); }

absl::Status SessionStore::Open(const Session& session, const std::vector<KeyRange>& stale) {
  WriteBatch batch;
  for (const KeyRange& range : stale) batch.DeleteRange(range.from, range.until);
  PutRecord(session, After::kGoesOn, batch);
  return Write(session, std::move(batch)).status();
}

void SessionStore::PutRecord(const Session& session, After after, WriteBatch& batch) const {
  const v1::Session described = session.Describe();
  store::v1::SessionRecord record;
  *record.mutable_config() = described.config();
  record.set_lineage(session.lineage());
  record.set_generation(session.generation());
  *record.mutable_create_time() = described.create_time();
  *record.mutable_expires_in() = described.expires_in();
  *record.mutable_layer_positions() = described.layer_positions();
  record.set_state_bytes(described.state_bytes());
  record.set_open(after == After::kGoesOn);
  record.set_boot_id(boot_id_);
  record.set_synced(synced_);
  const std::string key = SessionRecordKey(session.key().tenant, session.key().id);
  Put(session, RecordKind::kSession, key, record.SerializeAsString(), batch);
}

}  // namespace attnd::server
