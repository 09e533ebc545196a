#include "server/session_directory.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/logging.h"
#include "server/proto_time.h"
#include "server/store/keys.h"
#include "server/store/record.h"
#include "server/tombstones.h"

namespace attnd::server {
namespace {

// Sessions that wait to be read at one time.
constexpr std::size_t kMostLoads = 4096;
// Records that are read before whoever waits for a session has a turn.
constexpr int kRecordsAtOnce = 1000;
// Stored sessions that one call of List looks at.
constexpr int kMostLookedAt = 1000;

bool HasLabels(const v1::SessionConfig& config,
               const google::protobuf::Map<std::string, std::string>& labels) {
  return std::ranges::all_of(labels, [&](const auto& label) {
    const auto found = config.labels().find(label.first);
    return found != config.labels().end() && found->second == label.second;
  });
}

}  // namespace

SessionDirectory::SessionDirectory(SessionTable& table, SessionStore* store, SessionLoader* loader,
                                   const Clock& clock)
    : table_(table), store_(store), loader_(loader), clock_(clock) {
  if (store_ == nullptr) {
    MutexLock lock(&mutex_);
    all_known_ = true;
    return;
  }
  table_.WhenGone([this](const Session& session, v1::ErrorReason reason) {
    if (session.ephemeral()) return;
    Remove(session.key(), session.lineage(), reason);
  });
  thread_ = std::thread([this] { Run(); });
}

SessionDirectory::~SessionDirectory() {
  if (!thread_.joinable()) return;
  Stop();
  thread_.join();
  table_.WhenGone(nullptr);
}

void SessionDirectory::Stop() {
  MutexLock lock(&mutex_);
  stopping_ = true;
  wake_.SignalAll();
}

void SessionDirectory::Get(const SessionKey& key, Then then) {
  absl::StatusOr<SessionPtr> session = table_.Find(key);
  if (session.ok() || store_ == nullptr) {
    then(session);
    return;
  }
  absl::Status refused;
  {
    MutexLock lock(&mutex_);
    const auto removal = removals_.find(key);
    const auto found = loads_.find(key);
    if (removal != removals_.end()) {
      refused = removal->second.failed
                    ? RetryableError(v1::STORE_UNAVAILABLE,
                                     absl::StrCat("session_id '", key.id,
                                                  "' is gone, but the store still has it"),
                                     absl::Seconds(1))
                    : GoneError(key.id, removal->second.reason);
    } else if (ReasonOf(session.status()) != v1::UNKNOWN) {
      refused = session.status();
    } else if (found != loads_.end()) {
      found->second.push_back(std::move(then));
      return;
    } else if (stopping_) {
      refused = RetryableError(v1::SHUTTING_DOWN, "the server is shutting down", absl::Seconds(1));
    } else if (loads_.size() >= kMostLoads) {
      refused = RetryableError(v1::QUEUE_FULL,
                               absl::StrCat(kMostLoads, " sessions wait to be read from the store"),
                               absl::Seconds(1));
    } else {
      loads_[key].push_back(std::move(then));
      to_load_.push_back(key);
      wake_.Signal();
      return;
    }
  }
  then(refused);
}

void SessionDirectory::AnswerOnceWritten(const SessionPtr& session, Then then) {
  if (session->ephemeral()) {
    then(session);
    return;
  }
  store_->WriteRecord(*session, [session, then = std::move(then)](const absl::Status& written) {
    if (written.ok()) {
      then(session);
    } else {
      then(written);
    }
  });
}

void SessionDirectory::Create(const SessionKey& key, SessionPlan plan, Then then) {
  // std::function wants what can be copied.
  const auto shared = std::make_shared<SessionPlan>(std::move(plan));
  Get(key, [this, key, shared, then = std::move(then)](const absl::StatusOr<SessionPtr>& found) {
    if (!found.ok() && found.status().code() != absl::StatusCode::kNotFound) {
      then(found.status());
      return;
    }
    absl::StatusOr<SessionPtr> session = table_.Create(key, std::move(*shared));
    if (!session.ok()) {
      then(session.status());
      return;
    }
    AnswerOnceWritten(*session, then);
  });
}

void SessionDirectory::Update(const SessionKey& key, const absl::Duration* time_to_live,
                              const google::protobuf::Map<std::string, std::string>* labels,
                              Then then) {
  std::optional<absl::Duration> time;
  if (time_to_live != nullptr) time = *time_to_live;
  std::optional<google::protobuf::Map<std::string, std::string>> marks;
  if (labels != nullptr) marks = *labels;
  Get(key,
      [this, key, time, marks, then = std::move(then)](const absl::StatusOr<SessionPtr>& found) {
        if (!found.ok()) {
          then(found.status());
          return;
        }
        absl::StatusOr<SessionPtr> session =
            table_.Update(key, time ? &*time : nullptr, marks ? &*marks : nullptr);
        if (!session.ok()) {
          then(session.status());
          return;
        }
        AnswerOnceWritten(*session, then);
      });
}

void SessionDirectory::Delete(const SessionKey& key, Done done) {
  if (store_ == nullptr) {
    done(table_.Delete(key));
    return;
  }
  if (RemoveAgain(key)) {
    AnswerOnceRemoved(key, std::move(done));
    return;
  }
  if (table_.Find(key).ok()) {
    // Whatever the store holds of it is removed by WhenGone().
    absl::Status deleted = table_.Delete(key);
    if (deleted.ok()) {
      AnswerOnceRemoved(key, std::move(done));
    } else {
      done(deleted);
    }
    return;
  }
  Get(key, [this, key, done = std::move(done)](const absl::StatusOr<SessionPtr>& found) {
    if (found.ok()) {
      Delete(key, done);
      return;
    }
    if (found.status().code() == absl::StatusCode::kNotFound) {
      if (ReasonOf(found.status()) == v1::UNKNOWN) {
        done(found.status());
      } else {
        AnswerOnceRemoved(key, done);
      }
      return;
    }
    if (ReasonOf(found.status()) != v1::DAMAGED) {
      done(found.status());
      return;
    }
    Entry entry;
    {
      MutexLock lock(&mutex_);
      Forget(key, &entry);
    }
    Remove(key, entry.lineage, v1::DELETED);
    AnswerOnceRemoved(key, done);
  });
}

void SessionDirectory::Remove(const SessionKey& key, std::uint64_t lineage,
                              v1::ErrorReason reason) {
  {
    MutexLock lock(&mutex_);
    removals_[key] = {lineage, reason, false};
  }
  store_->Remove(key, lineage, reason, [this, key, lineage](const absl::Status& removed) {
    MutexLock lock(&mutex_);
    const auto removal = removals_.find(key);
    if (removal == removals_.end() || removal->second.lineage != lineage) return;
    if (removed.ok()) {
      removals_.erase(removal);
    } else {
      removal->second.failed = true;
    }
  });
}

bool SessionDirectory::RemoveAgain(const SessionKey& key) {
  Removal removal;
  {
    MutexLock lock(&mutex_);
    const auto found = removals_.find(key);
    if (found == removals_.end() || !found->second.failed) return false;
    removal = found->second;
  }
  Remove(key, removal.lineage, removal.reason);
  return true;
}

// What was queued before is done by then.
void SessionDirectory::AnswerOnceRemoved(const SessionKey& key, Done done) {
  store_->Wait([this, key, done = std::move(done)](const absl::Status& waited) {
    bool failed = false;
    {
      MutexLock lock(&mutex_);
      const auto removal = removals_.find(key);
      failed = removal != removals_.end() && removal->second.failed;
    }
    done(failed && waited.ok()
             ? RetryableError(v1::STORE_UNAVAILABLE, "the store does not remove the session",
                              absl::Seconds(1))
             : waited);
  });
}

SessionDirectory::Page SessionDirectory::List(
    const std::string& tenant, const std::string& after, std::int64_t count,
    const google::protobuf::Map<std::string, std::string>& labels) {
  const SessionTable::Page loaded = table_.List(tenant, after, count, labels);
  // Both lists are in order; what lies behind the end of either page is for the next one.
  Page page;
  page.more = loaded.more;
  std::map<std::string, v1::Session> found;
  for (const SessionPtr& session : loaded.sessions) {
    found.emplace(session->key().id, session->Describe());
  }
  std::string last = loaded.last_id;
  {
    MutexLock lock(&mutex_);
    const std::int64_t now = clock_.MonotonicNanos();
    int looked_at = 0;
    for (auto it = stored_.upper_bound({tenant, after});
         it != stored_.end() && it->first.tenant == tenant; ++it) {
      const std::string& id = it->first.id;
      if (loaded.more && id > loaded.last_id) break;
      if (looked_at == kMostLookedAt) {
        page.more = true;
        last = std::prev(it)->first.id;
        found.erase(found.upper_bound(last), found.end());
        break;
      }
      ++looked_at;
      last = std::max(last, id);
      if (it->second.expiry_nanos <= now) continue;
      if (!HasLabels(it->second.described.config(), labels)) continue;
      v1::Session described = it->second.described;
      *described.mutable_expires_in() = ToProto(absl::Nanoseconds(it->second.expiry_nanos - now));
      found.emplace(id, std::move(described));
    }
  }
  for (auto& [id, session] : found) {
    if (static_cast<std::int64_t>(page.sessions.size()) == count) {
      page.more = true;
      last = page.sessions.back().session_id();
      break;
    }
    page.sessions.push_back(std::move(session));
  }
  page.last_id = last;
  return page;
}

std::int64_t SessionDirectory::ExpireIdle() {
  std::int64_t next = table_.ExpireIdle();
  std::vector<std::pair<SessionKey, std::uint64_t>> expired;
  std::vector<SessionKey> failed;
  {
    MutexLock lock(&mutex_);
    const std::int64_t now = clock_.MonotonicNanos();
    while (!expiries_.empty()) {
      const auto& [time, key] = *expiries_.begin();
      // One that is being loaded is in use.
      if (time > now || loads_.contains(key)) {
        next = std::min(next, std::max(time, now));
        break;
      }
      Entry entry;
      const SessionKey gone = key;
      Forget(gone, &entry);
      // From here on nobody reads it.
      removals_[gone] = {entry.lineage, v1::EXPIRED, false};
      expired.emplace_back(gone, entry.lineage);
    }
    for (const auto& [key, removal] : removals_) {
      if (removal.failed) failed.push_back(key);
    }
  }
  for (const auto& [key, lineage] : expired) Remove(key, lineage, v1::EXPIRED);
  for (const SessionKey& key : failed) RemoveAgain(key);
  for (const auto& [key, lineage] : expired) {
    Log(LogLevel::kInfo, "stored session expired", {{"session", key.id}});
  }
  return next;
}

bool SessionDirectory::Forget(const SessionKey& key, Entry* entry) {
  const auto found = stored_.find(key);
  if (found == stored_.end()) return false;
  expiries_.erase({found->second.expiry_nanos, key});
  if (entry != nullptr) *entry = std::move(found->second);
  stored_.erase(found);
  return true;
}

void SessionDirectory::Note(const SessionKey& key, const store::v1::SessionRecord& record) {
  Entry entry;
  entry.lineage = record.lineage();
  entry.expiry_nanos =
      clock_.MonotonicNanos() + absl::ToInt64Nanoseconds(FromProto(record.expires_in()));
  v1::Session& session = entry.described;
  session.set_session_id(key.id);
  *session.mutable_config() = record.config();
  session.set_generation(record.generation());
  *session.mutable_create_time() = record.create_time();
  *session.mutable_layer_positions() = record.layer_positions();
  *session.mutable_durable_layer_positions() = record.layer_positions();
  if (!record.layer_positions().empty()) {
    session.set_position(*std::ranges::min_element(record.layer_positions()));
  }
  // One that is in memory, or has come there and gone since the record was read, is left alone.
  if (table_.Find(key).ok()) return;
  MutexLock lock(&mutex_);
  if (loads_.contains(key)) return;
  expiries_.emplace(entry.expiry_nanos, key);
  stored_.emplace(key, std::move(entry));
}

bool SessionDirectory::ReadRecords(KeyRange& range) {
  bool more = false;
  int read = 0;
  std::int64_t damaged = 0;
  std::vector<std::pair<SessionKey, store::v1::SessionRecord>> records;
  absl::Status scanned = store_->store().Scan(
      range.from, range.until, [&](std::string_view key, std::string_view bytes) {
        if (read++ == kRecordsAtOnce) {
          range.from = std::string(key);
          more = true;
          return false;
        }
        const std::optional<KeyParts> parts = ParseKey(key);
        absl::StatusOr<Record> record = DecodeRecord(RecordKind::kSession, key, bytes);
        store::v1::SessionRecord message;
        if (!parts || !record.ok() ||
            !message.ParseFromArray(record->payload.data(),
                                    static_cast<int>(record->payload.size()))) {
          ++damaged;
          return true;
        }
        records.emplace_back(SessionKey{parts->tenant, parts->id}, std::move(message));
        return true;
      });
  if (!scanned.ok() || damaged > 0) {
    Log(LogLevel::kError, "sessions of the store are not listed",
        {{"damaged_records", damaged}, {"message", std::string(scanned.message())}});
  }
  for (const auto& [key, record] : records) Note(key, record);
  return more;
}

bool SessionDirectory::LoadNext(engine::Scratch& scratch) {
  SessionKey key;
  bool stopping = false;
  bool removed = false;
  {
    MutexLock lock(&mutex_);
    if (to_load_.empty()) return false;
    key = std::move(to_load_.front());
    to_load_.pop_front();
    stopping = stopping_;
    removed = removals_.contains(key);
  }
  // It may have come into memory, or gone, since it was asked for.
  absl::StatusOr<SessionPtr> loaded = table_.Find(key);
  if (loaded.ok() || ReasonOf(loaded.status()) != v1::UNKNOWN) {
    Finish(key, std::move(loaded));
    return true;
  }
  if (stopping) {
    loaded = RetryableError(v1::SHUTTING_DOWN, "the server is shutting down", absl::Seconds(1));
  } else if (removed) {
    loaded = GoneError(key.id, v1::EXPIRED);
  } else {
    try {
      loaded = loader_->Load(key, scratch);
    } catch (const std::bad_alloc&) {
      loaded = OutOfMemory("the machine has no memory to load the session");
    }
  }
  Finish(key, std::move(loaded));
  return true;
}

void SessionDirectory::Run() {
  engine::Scratch scratch;
  KeyRange range = AllOfKind(RecordKind::kSession);
  bool more = true;
  mutex_.Lock();
  while (true) {
    const bool stopping = stopping_;
    mutex_.Unlock();
    const bool loaded = LoadNext(scratch);
    if (more && !stopping) more = ReadRecords(range);
    mutex_.Lock();
    if (!more && !all_known_) {
      all_known_ = true;
      Log(LogLevel::kInfo, "sessions in the store",
          {{"sessions", static_cast<std::int64_t>(stored_.size())}});
    }
    if (loaded || (more && !stopping)) continue;
    if (stopping_ && to_load_.empty()) break;
    if (to_load_.empty()) wake_.Wait(&mutex_);
  }
  mutex_.Unlock();
}

void SessionDirectory::Finish(const SessionKey& key, absl::StatusOr<SessionPtr> loaded) {
  if (loaded.ok()) {
    absl::StatusOr<SessionPtr> adopted = table_.Adopt(*loaded);
    if (adopted.ok()) {
      Log(LogLevel::kInfo, "session loaded",
          {{"session", key.id}, {"bytes", (*loaded)->state_bytes()}});
    }
    loaded = std::move(adopted);
  } else if (ReasonOf(loaded.status()) == v1::DAMAGED) {
    Log(LogLevel::kError, "session damaged",
        {{"session", key.id}, {"message", std::string(loaded.status().message())}});
  }
  std::vector<Then> waiting;
  {
    MutexLock lock(&mutex_);
    waiting = std::move(loads_.extract(key).mapped());
    if (loaded.ok() || loaded.status().code() == absl::StatusCode::kNotFound) Forget(key);
  }
  for (const Then& then : waiting) then(loaded);
}

}  // namespace attnd::server
