#include "server/tombstones.h"

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/session_config.h"

namespace attnd::server {

absl::Status GoneError(const std::string& id, v1::ErrorReason reason) {
  const char* what = reason == v1::EXPIRED   ? "expired: it was not used for its time-to-live"
                     : reason == v1::DELETED ? "was deleted"
                                             : "is not known to this server";
  // An id that no session can have may be long, and hold anything.
  const std::string shown = CheckSessionId(id).ok() ? absl::StrCat("'", id, "' ")
                                                    : absl::StrCat("of ", id.size(), " bytes ");
  return Error(reason, absl::StrCat("session_id ", shown, what));
}

void Tombstones::Add(const SessionKey& key, v1::ErrorReason reason, std::int64_t now_nanos) {
  reasons_[key] = {reason, now_nanos};
  order_.emplace_back(now_nanos, key);
  while (!order_.empty() && (static_cast<std::int64_t>(order_.size()) > capacity_ ||
                             now_nanos - order_.front().first >= retention_nanos_)) {
    const auto found = reasons_.find(order_.front().second);
    if (found != reasons_.end() && found->second.time_nanos == order_.front().first) {
      reasons_.erase(found);
    }
    order_.pop_front();
  }
}

v1::ErrorReason Tombstones::Find(const SessionKey& key, std::int64_t now_nanos) const {
  const auto found = reasons_.find(key);
  if (found == reasons_.end() || now_nanos - found->second.time_nanos >= retention_nanos_) {
    return v1::UNKNOWN;
  }
  return found->second.reason;
}

}  // namespace attnd::server
