// What became of sessions that are gone, so that NOT_FOUND can say why: bounded in number and time.
// Not synchronised; the session table guards it.
#ifndef ATTND_SERVER_TOMBSTONES_H_
#define ATTND_SERVER_TOMBSTONES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "attnd/v1/attention.pb.h"
#include "server/session.h"

namespace attnd::server {

// NOT_FOUND with the reason.
absl::Status GoneError(const std::string& id, v1::ErrorReason reason);

class Tombstones {
 public:
  Tombstones(std::int64_t capacity, std::int64_t retention_nanos)
      : capacity_(capacity), retention_nanos_(retention_nanos) {}

  // `reason` is EXPIRED or DELETED. The oldest tombstone goes when there are too many.
  void Add(const SessionKey& key, v1::ErrorReason reason, std::int64_t now_nanos);
  // The reason, or UNKNOWN.
  v1::ErrorReason Find(const SessionKey& key, std::int64_t now_nanos) const;
  // The id lives again.
  void Remove(const SessionKey& key) { reasons_.erase(key); }

 private:
  struct Stone {
    v1::ErrorReason reason = v1::UNKNOWN;
    std::int64_t time_nanos = 0;
  };
  const std::int64_t capacity_;
  const std::int64_t retention_nanos_;
  std::map<SessionKey, Stone> reasons_;
  // In order of time; an entry whose time differs from the map's is of an earlier life of the id.
  std::deque<std::pair<std::int64_t, SessionKey>> order_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_TOMBSTONES_H_
