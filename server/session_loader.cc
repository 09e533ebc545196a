#include "server/session_loader.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/layer_loader.h"
#include "engine/saved_layer.h"
#include "server/config_hash.h"
#include "server/error.h"
#include "server/log_record.h"
#include "server/mutation.h"
#include "server/proto_time.h"
#include "server/store/keys.h"
#include "server/store/record.h"
#include "server/tombstones.h"

namespace attnd::server {
namespace {

absl::Status Damaged(const std::string& what) { return absl::DataLossError(what); }

// A record of the store: its payload parsed, and the configuration it was written for. Nothing
// where there is none.
template <typename Message>
struct Found {
  Message message;
  ConfigHash hash = {};
};

template <typename Message>
absl::StatusOr<Found<Message>> Parse(RecordKind kind, std::string_view key,
                                     std::string_view bytes) {
  absl::StatusOr<Record> record = DecodeRecord(kind, key, bytes);
  if (!record.ok()) return record.status();
  Found<Message> found;
  found.hash = record->config_hash;
  if (!found.message.ParseFromArray(record->payload.data(),
                                    static_cast<int>(record->payload.size()))) {
    return Damaged(absl::StrCat("the record under ", KeyText(key), " is not what it should be"));
  }
  return found;
}

template <typename Message>
absl::StatusOr<std::optional<Found<Message>>> Read(const Store& store, RecordKind kind,
                                                   const std::string& key) {
  absl::StatusOr<std::optional<std::string>> bytes = store.Get(key);
  if (!bytes.ok()) return bytes.status();
  if (!bytes->has_value()) return std::optional<Found<Message>>();
  absl::StatusOr<Found<Message>> found = Parse<Message>(kind, key, **bytes);
  if (!found.ok()) return found.status();
  return std::optional<Found<Message>>(*std::move(found));
}

absl::Status CheckHash(const ConfigHash& found, const ConfigHash& expected,
                       const std::string& what) {
  if (found == expected) return absl::OkStatus();
  return Damaged(absl::StrCat(what, " was written for another configuration"));
}

// What clients hear of a failure to load.
absl::Status ForClients(const SessionKey& key, const absl::Status& status) {
  if (ReasonOf(status) != v1::ERROR_REASON_UNSPECIFIED) return status;
  const std::string message(status.message());
  if (status.code() == absl::StatusCode::kDataLoss) {
    return Error(v1::DAMAGED, absl::StrCat("what the store holds of session_id '", key.id,
                                           "' is damaged: ", message));
  }
  return RetryableError(v1::STORE_UNAVAILABLE,
                        absl::StrCat("session_id '", key.id, "' cannot be read: ", message),
                        absl::Seconds(1));
}

}  // namespace

SessionLoader::SessionLoader(SessionStore& store, const Options& options, StateBudget& budget,
                             Make make, Random random)
    : store_(store),
      options_(options),
      budget_(budget),
      make_(std::move(make)),
      random_(std::move(random)) {}

absl::StatusOr<std::shared_ptr<Session>> SessionLoader::Load(const SessionKey& key,
                                                             engine::Scratch& scratch) {
  const auto record = Read<store::v1::SessionRecord>(store_.store(), RecordKind::kSession,
                                                     SessionRecordKey(key.tenant, key.id));
  if (!record.ok()) return ForClients(key, record.status());
  if (!record->has_value()) {
    const auto tombstone = Read<store::v1::TombstoneRecord>(store_.store(), RecordKind::kTombstone,
                                                            TombstoneKey(key.tenant, key.id));
    if (!tombstone.ok()) return ForClients(key, tombstone.status());
    return GoneError(key.id, tombstone->has_value() ? (*tombstone)->message.reason() : v1::UNKNOWN);
  }
  absl::StatusOr<std::shared_ptr<Session>> session =
      Restore(key, (*record)->message, (*record)->hash, scratch);
  if (!session.ok()) return ForClients(key, session.status());
  return session;
}

bool SessionLoader::MayHaveLost(const store::v1::SessionRecord& record) const {
  // Opening the store found that its last writes were damaged, and went on without them.
  if (store_.store().Facts().dropped_damaged_writes) return true;
  if (!record.open()) return false;
  if (record.config().durability() != v1::LOGGED) return true;
  // Of a process that was killed the system has all that it had written.
  const bool same_boot = !record.boot_id().empty() && record.boot_id() == store_.boot_id();
  return !record.synced() && !same_boot;
}

absl::StatusOr<std::shared_ptr<Session>> SessionLoader::Restore(
    const SessionKey& key, const store::v1::SessionRecord& record, const ConfigHash& hash,
    engine::Scratch& scratch) {
  absl::StatusOr<SessionPlan> plan = PlanSession(record.config(), options_);
  if (!plan.ok()) return plan.status();
  absl::Status fits = CheckHash(hash, HashOfConfig(plan->config), "the session's record");
  if (!fits.ok()) return fits;
  absl::Status room = budget_.Reserve(record.state_bytes());
  if (!room.ok()) return room;
  SessionBirth birth = {.generation = record.generation(),
                        .lineage = record.lineage(),
                        .create_time = FromProto(record.create_time())};
  if (MayHaveLost(record)) {
    do {
      birth.generation = random_();
    } while (birth.generation == 0 || birth.generation == record.generation());
  }
  absl::StatusOr<std::shared_ptr<Session>> session = make_(key, *std::move(plan), birth);
  budget_.Adjust(-record.state_bytes());
  if (!session.ok()) return session;
  absl::Status loaded = LoadCheckpoint(**session, scratch);
  if (loaded.ok()) loaded = ReplayLog(**session, scratch);
  if (!loaded.ok()) return loaded;
  (*session)->NoteSaved((*session)->Snapshot());

  std::vector<KeyRange> stale;
  for (std::int64_t layer = 0; layer < (*session)->layers(); ++layer) {
    const std::int64_t blocks =
        (*session)->extent().segment_blocks[static_cast<std::size_t>(layer)];
    stale.push_back({SegmentKey(key.tenant, birth.lineage, layer, blocks),
                     SegmentKey(key.tenant, birth.lineage, layer + 1, 0)});
  }
  const KeyRange behind =
      LogAfter(key.tenant, key.id, birth.lineage, (*session)->Snapshot().sequence);
  stale.push_back(behind);
  absl::Status opened = store_.Open(**session, stale);
  if (!opened.ok()) return opened;
  return session;
}

absl::Status SessionLoader::LoadCheckpoint(Session& session, engine::Scratch& scratch) {
  const auto found = Read<store::v1::CheckpointRecord>(
      store_.store(), RecordKind::kCheckpoint,
      CheckpointKey(session.key().tenant, session.key().id, session.lineage()));
  if (!found.ok()) return found.status();
  if (!found->has_value()) return absl::OkStatus();
  const store::v1::CheckpointRecord& record = (*found)->message;
  absl::Status fits = CheckHash((*found)->hash, session.config_hash(), "the checkpoint");
  if (!fits.ok()) return fits;
  if (record.segment_blocks_size() != session.layers() ||
      record.layer_positions_size() != session.layers()) {
    return Damaged(absl::StrCat("the checkpoint is of ", record.segment_blocks_size(),
                                " layers; the session has ", session.layers()));
  }
  SessionSnapshot snapshot = session.Snapshot();
  snapshot.sequence = record.sequence();
  absl::StatusOr<engine::MessageLog> messages = engine::MessageLog::Load(
      {record.messages().data(), record.messages().size()}, Session::kRememberedMessages);
  if (!messages.ok()) return messages.status();
  snapshot.messages = *std::move(messages);
  for (const store::v1::StepAnswer& step : record.steps()) {
    if (!session.CheckLayer(step.layer()).ok()) return Damaged("the checkpoint has an odd layer");
    snapshot.steps[static_cast<std::size_t>(step.layer())] = {
        {step.digest_high(), step.digest_low()},
        std::make_shared<const v1::StepResponse>(step.response())};
  }
  Session::Extent& extent = session.extent();
  for (std::int64_t layer = 0; layer < session.layers(); ++layer) {
    const auto at = static_cast<std::size_t>(layer);
    absl::StatusOr<LayerStatePtr> state =
        LoadLayer(session, layer, record.segment_blocks(static_cast<int>(layer)), scratch);
    if (!state.ok()) return state.status();
    const std::int64_t position = record.layer_positions(static_cast<int>(layer));
    if ((*state)->position() != position) {
      return Damaged(absl::StrCat("layer ", layer, " holds ", (*state)->position(),
                                  " tokens; the checkpoint says ", position));
    }
    extent.segment_blocks[at] = record.segment_blocks(static_cast<int>(layer));
    extent.root_positions[at] = (*state)->position();
    snapshot.layers[at] = *std::move(state);
  }
  extent.sequence = snapshot.sequence;
  session.Restore(std::move(snapshot));
  return absl::OkStatus();
}

absl::StatusOr<LayerStatePtr> SessionLoader::LoadLayer(const Session& session, std::int64_t layer,
                                                       std::int64_t segment_blocks,
                                                       engine::Scratch& scratch) {
  const SessionKey& key = session.key();
  const std::string root_key = LayerRootKey(key.tenant, key.id, session.lineage(), layer);
  absl::StatusOr<std::optional<std::string>> root = store_.store().Get(root_key);
  if (!root.ok()) return root.status();
  // A layer that has had no token has no root.
  if (!root->has_value()) return session.layer(layer);
  absl::StatusOr<Record> record = DecodeRecord(RecordKind::kLayerRoot, root_key, **root);
  if (!record.ok()) return record.status();
  absl::Status fits = CheckHash(record->config_hash, session.config_hash(), "the layer's root");
  if (!fits.ok()) return fits;
  absl::StatusOr<engine::LayerLoader> loader = engine::LayerLoader::Make(
      session.engine(layer), {record->payload.data(), record->payload.size()});
  if (!loader.ok()) return loader.status();
  absl::Status added;
  // The segment that holds the first block may begin before it.
  const std::int64_t from =
      std::max<std::int64_t>(loader->first_block() - engine::kMostSegmentBlocks + 1, 0);
  absl::Status scanned = store_.store().Scan(
      SegmentKey(key.tenant, session.lineage(), layer, from),
      SegmentKey(key.tenant, session.lineage(), layer, segment_blocks),
      [&](std::string_view segment_key, std::string_view bytes) {
        absl::StatusOr<Record> segment = DecodeRecord(RecordKind::kSegment, segment_key, bytes);
        added = segment.status();
        if (added.ok()) {
          added = CheckHash(segment->config_hash, session.config_hash(), "a segment");
        }
        if (added.ok()) {
          added = loader->AddSegment({segment->payload.data(), segment->payload.size()}, scratch);
        }
        return added.ok();
      });
  if (!scanned.ok()) return scanned;
  if (!added.ok()) return added;
  return loader->Finish(scratch);
}

absl::Status SessionLoader::ReplayLog(Session& session, engine::Scratch& scratch) {
  const std::uint64_t covered = session.extent().sequence;
  const SessionKey& key = session.key();
  const KeyRange range = LogAfter(key.tenant, key.id, session.lineage(), covered);
  std::uint64_t next = covered + 1;
  absl::Status replayed;
  absl::Status scanned = store_.store().Scan(
      range.from, range.until, [&](std::string_view log_key, std::string_view bytes) {
        absl::StatusOr<Found<store::v1::LogRecord>> record =
            Parse<store::v1::LogRecord>(RecordKind::kLog, log_key, bytes);
        replayed = record.status();
        if (!replayed.ok()) return false;
        replayed = CheckHash(record->hash, session.config_hash(), "a record of the log");
        if (!replayed.ok() || record->message.sequence() != next) return false;
        replayed = Replay(session, record->message, scratch);
        ++next;
        return replayed.ok();
      });
  return scanned.ok() ? replayed : scanned;
}

absl::Status SessionLoader::Replay(Session& session, const store::v1::LogRecord& record,
                                   engine::Scratch& scratch) {
  const bool step = record.has_step();
  std::vector<LayerSlice> slices;
  const auto add = [&](const v1::LayerTokens& tokens) {
    absl::StatusOr<LayerSlice> slice = CheckTokens(session, tokens, "tokens");
    if (slice.ok()) slices.push_back(*slice);
    return slice.status();
  };
  absl::Status valid;
  if (step) valid = add(record.step().tokens());
  for (const v1::LayerTokens& tokens : record.append().tokens()) valid.Update(add(tokens));
  const LoggedMessage logged = MessageOf(record);
  const auto bad = [&](const std::string& why) {
    return Damaged(absl::StrCat("message ", logged.sequence, " of the log ", why));
  };
  if (!valid.ok()) return bad(std::string(valid.message()));
  Mutation mutation(session, step ? engine::MessageKind::kStep : engine::MessageKind::kAppend,
                    std::move(slices), budget_, 0);
  if (!mutation.Applies()) return bad("does not stand at the session's position");
  for (std::size_t slice = 0; slice < mutation.slices(); ++slice) {
    while (mutation.done(slice) < mutation.count(slice)) {
      const std::int64_t now =
          std::min(mutation.count(slice) - mutation.done(slice), mutation.QuantumTokens(slice));
      while (!mutation.PrepareSeal(slice, now, scratch)) {
      }
      absl::Status applied = mutation.Apply(slice, now, scratch);
      if (!applied.ok()) return bad(std::string(applied.message()));
    }
    absl::Status checked = mutation.CheckTail(slice, scratch);
    if (!checked.ok()) return bad(std::string(checked.message()));
  }
  engine::Message message = mutation.Message(logged.queries);
  if (!(message.digest == logged.digest)) return bad("has another digest");
  const auto answer = step ? std::make_shared<const v1::StepResponse>(record.answer()) : nullptr;
  return mutation.Publish(std::move(message), answer).status();
}

}  // namespace attnd::server
