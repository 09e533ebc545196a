#include "server/tombstones.h"

namespace attnd::server {

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
