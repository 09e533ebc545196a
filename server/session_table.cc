#include "server/session_table.h"

#include <limits>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/error.h"
#include "server/logging.h"
#include "server/session_config.h"

namespace attnd::server {
namespace {

// Sessions that one call of List looks at, whatever it finds: well under a millisecond of the lock.
constexpr std::int64_t kMaxLookedAt = 1000;

}  // namespace

SessionTable::SessionTable(const Options& options, const Clock& clock, Scheduler& scheduler,
                           StateBudget& budget, Metrics& metrics, Random random)
    : options_(options),
      clock_(clock),
      scheduler_(scheduler),
      budget_(budget),
      metrics_(metrics),
      random_(std::move(random)),
      tombstones_(options.max_tombstones, absl::ToInt64Nanoseconds(options.tombstone_retention)) {}

absl::StatusOr<SessionPtr> SessionTable::Create(const SessionKey& key, SessionPlan plan) {
  // A session whose time has come must not keep a new one out. Next to free where there is none.
  ExpireIdle();
  SessionPtr session;
  {
    MutexLock lock(&mutex_);
    const auto found = sessions_.find(key);
    if (found != sessions_.end()) {
      if (found->second.session->identity() == plan.identity) {
        const Session::Use use(*found->second.session);
        return found->second.session;
      }
      return Error(v1::SESSION_EXISTS,
                   absl::StrCat("session_id '", key.id, "' is in use with another configuration"));
    }
    if (static_cast<std::int64_t>(sessions_.size()) >= options_.max_sessions) return Full();
    const SessionBirth birth = {NewNumber(), NewNumber(), clock_.WallNow()};
    absl::StatusOr<SessionPtr> made = MakeLocked(key, std::move(plan), birth);
    if (!made.ok()) return made;
    session = *std::move(made);
    SetExpiry(sessions_.emplace(key, Entry{session, 0}).first);
    tombstones_.Remove(key);
  }
  metrics_.AddSessionCreated();
  Log(LogLevel::kInfo, "session created",
      {{"session", key.id}, {"layers", session->layers()}, {"bytes", session->state_bytes()}});
  return session;
}

absl::StatusOr<SessionPtr> SessionTable::Make(const SessionKey& key, SessionPlan plan,
                                              const SessionBirth& birth) {
  MutexLock lock(&mutex_);
  return MakeLocked(key, std::move(plan), birth);
}

absl::StatusOr<SessionPtr> SessionTable::MakeLocked(const SessionKey& key, SessionPlan plan,
                                                    const SessionBirth& birth) {
  const std::int64_t bytes = Session::initial_bytes(plan);
  absl::Status reserved = budget_.Reserve(bytes);
  if (!reserved.ok()) return reserved;
  try {
    return std::make_shared<Session>(key, std::move(plan), birth, next_flow_++, clock_, scheduler_,
                                     budget_);
  } catch (const std::bad_alloc&) {
    budget_.Adjust(-bytes);
    return OutOfMemory("the machine has no memory for another session");
  }
}

absl::StatusOr<SessionPtr> SessionTable::Adopt(const SessionPtr& session) {
  MutexLock lock(&mutex_);
  const auto found = sessions_.find(session->key());
  if (found != sessions_.end()) return found->second.session;
  if (static_cast<std::int64_t>(sessions_.size()) >= options_.max_sessions) return Full();
  // Its idle time begins anew.
  const Session::Use use(*session);
  SetExpiry(sessions_.emplace(session->key(), Entry{session, 0}).first);
  return session;
}

std::vector<SessionPtr> SessionTable::Lasting() const {
  MutexLock lock(&mutex_);
  std::vector<SessionPtr> lasting;
  for (const auto& [key, entry] : sessions_) {
    if (!entry.session->ephemeral()) lasting.push_back(entry.session);
  }
  return lasting;
}

absl::StatusOr<SessionPtr> SessionTable::Find(const SessionKey& key) {
  SessionPtr expired;
  {
    MutexLock lock(&mutex_);
    const auto found = sessions_.find(key);
    if (found == sessions_.end()) return Gone(key);
    if (found->second.session->ExpiryNanos() > clock_.MonotonicNanos())
      return found->second.session;
    expired = Remove(found, v1::EXPIRED);
  }
  Bury(expired, v1::EXPIRED);
  return GoneError(key.id, v1::EXPIRED);
}

absl::StatusOr<SessionPtr> SessionTable::Update(
    const SessionKey& key, const absl::Duration* time_to_live,
    const google::protobuf::Map<std::string, std::string>* labels) {
  absl::StatusOr<SessionPtr> session = Find(key);
  if (!session.ok()) return session;
  const Session::Use use(**session);
  (*session)->Update(time_to_live, labels);
  MutexLock lock(&mutex_);
  const auto found = sessions_.find(key);
  if (found != sessions_.end()) SetExpiry(found);
  return session;
}

absl::Status SessionTable::Delete(const SessionKey& key) {
  SessionPtr removed;
  {
    MutexLock lock(&mutex_);
    const auto found = sessions_.find(key);
    if (found == sessions_.end()) {
      absl::Status gone = Gone(key);
      return ReasonOf(gone) == v1::UNKNOWN ? gone : absl::OkStatus();
    }
    removed = Remove(found, v1::DELETED);
  }
  Bury(removed, v1::DELETED);
  return absl::OkStatus();
}

SessionTable::Page SessionTable::List(
    const std::string& tenant, const std::string& after, std::int64_t count,
    const google::protobuf::Map<std::string, std::string>& labels) {
  Page page;
  MutexLock lock(&mutex_);
  const std::int64_t now = clock_.MonotonicNanos();
  std::int64_t looked_at = 0;
  for (auto it = sessions_.upper_bound({tenant, after});
       it != sessions_.end() && it->first.tenant == tenant; ++it) {
    const SessionPtr& session = it->second.session;
    const bool listed = session->ExpiryNanos() > now && session->HasLabels(labels);
    const bool full = static_cast<std::int64_t>(page.sessions.size()) == count;
    if ((listed && full) || looked_at == kMaxLookedAt) {
      page.more = true;
      break;
    }
    ++looked_at;
    page.last_id = it->first.id;
    if (listed) page.sessions.push_back(session);
  }
  return page;
}

std::int64_t SessionTable::ExpireIdle() {
  std::vector<SessionPtr> expired;
  std::int64_t next = std::numeric_limits<std::int64_t>::max();
  {
    MutexLock lock(&mutex_);
    const std::int64_t now = clock_.MonotonicNanos();
    while (!expiries_.empty()) {
      if (expiries_.begin()->first > now) {
        next = expiries_.begin()->first;
        break;
      }
      const auto found = sessions_.find(expiries_.begin()->second);
      if (found->second.session->ExpiryNanos() > now) {
        SetExpiry(found);
      } else {
        expired.push_back(Remove(found, v1::EXPIRED));
      }
    }
  }
  for (const SessionPtr& session : expired) Bury(session, v1::EXPIRED);
  return next;
}

void SessionTable::EndWaits(const absl::Status& reason) {
  std::vector<SessionPtr> sessions;
  {
    MutexLock lock(&mutex_);
    for (const auto& [key, entry] : sessions_) sessions.push_back(entry.session);
  }
  for (const SessionPtr& session : sessions) session->EndWaits(reason);
}

std::int64_t SessionTable::size() const {
  MutexLock lock(&mutex_);
  return static_cast<std::int64_t>(sessions_.size());
}

absl::Status SessionTable::Full() const {
  return RetryableError(
      v1::TOO_MANY_SESSIONS,
      absl::StrCat("the server holds max_sessions = ", options_.max_sessions, " sessions"),
      absl::Seconds(1));
}

std::uint64_t SessionTable::NewNumber() {
  std::uint64_t number = 0;
  while (number == 0) number = random_();
  return number;
}

std::uint64_t SessionTable::NewGeneration() {
  MutexLock lock(&mutex_);
  return NewNumber();
}

void SessionTable::WhenGone(std::function<void(const Session&, v1::ErrorReason)> gone) {
  MutexLock lock(&mutex_);
  gone_ = std::move(gone);
}

std::string SessionTable::NewId() {
  MutexLock lock(&mutex_);
  return absl::StrFormat("%016x%016x", random_(), random_());
}

SessionPtr SessionTable::Remove(Entries::iterator found, v1::ErrorReason reason) {
  SessionPtr session = std::move(found->second.session);
  tombstones_.Add(found->first, reason, clock_.MonotonicNanos());
  expiries_.erase({found->second.expiry_nanos, found->first});
  sessions_.erase(found);
  // Before the id can be used again, so that what follows in the store is of the next session.
  session->Shut(GoneError(session->key().id, reason));
  if (gone_) gone_(*session, reason);
  return session;
}

void SessionTable::SetExpiry(Entries::iterator entry) {
  expiries_.erase({entry->second.expiry_nanos, entry->first});
  entry->second.expiry_nanos = entry->second.session->ExpiryNanos();
  expiries_.emplace(entry->second.expiry_nanos, entry->first);
}

absl::Status SessionTable::Gone(const SessionKey& key) const {
  return GoneError(key.id, tombstones_.Find(key, clock_.MonotonicNanos()));
}

void SessionTable::Bury(const SessionPtr& session, v1::ErrorReason reason) {
  session->EndWaits(GoneError(session->key().id, reason));
  metrics_.AddSessionClosed(reason == v1::EXPIRED ? CloseReason::kExpired : CloseReason::kDeleted);
  Log(LogLevel::kInfo, reason == v1::EXPIRED ? "session expired" : "session deleted",
      {{"session", session->key().id}, {"bytes", session->state_bytes()}});
}

}  // namespace attnd::server
