#include "server/feature_map_store.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/error.h"

namespace attnd::server {
absl::Status FeatureMapStore::Reservation::GrowTo(std::int64_t bytes) {
  const std::int64_t more = bytes + kEntryBytes - bytes_;
  if (more <= 0) return absl::OkStatus();
  absl::Status status = store_.Grow(more);
  if (status.ok()) bytes_ += more;
  return status;
}

absl::Status FeatureMapStore::Grow(std::int64_t bytes) {
  Removed removed;
  MutexLock lock(&mutex_);
  const std::int64_t in_use = bytes_ - idle_bytes_;
  if (bytes > options_.max_feature_map_bytes - in_use) {
    return RetryableError(
        v1::FEATURE_MAP_BYTES,
        absl::StrCat("learned feature maps in use or being uploaded hold ", in_use, " bytes; ",
                     bytes,
                     " more would exceed max_feature_map_bytes = ", options_.max_feature_map_bytes),
        absl::Seconds(1));
  }
  while (bytes > options_.max_feature_map_bytes - bytes_) removed.push_back(RemoveOldest());
  bytes_ += bytes;
  return absl::OkStatus();
}

void FeatureMapStore::GiveBack(std::int64_t bytes) {
  MutexLock lock(&mutex_);
  bytes_ -= bytes;
}

MapWeightsPtr FeatureMapStore::Find(const Sha256Digest& sha256) {
  MapWeightsPtr weights;
  {
    MutexLock lock(&mutex_);
    const auto found = maps_.find(sha256);
    if (found == maps_.end()) return nullptr;
    if (found->second.uses++ == 0) BecomeUsed(found);
    weights = found->second.weights;
  }
  const engine::MapWeights* const map = weights.get();
  // Also run where there is no memory for the pointer.
  return {map, [this, sha256, weights = std::move(weights)](const engine::MapWeights*) {
            EndUse(sha256);
          }};
}

void FeatureMapStore::EndUse(const Sha256Digest& sha256) {
  MutexLock lock(&mutex_);
  const auto found = maps_.find(sha256);
  if (--found->second.uses == 0) BecomeIdle(found);
}

void FeatureMapStore::BecomeUsed(Maps::iterator map) {
  map->second.place = idle_.extract({map->second.last_use_nanos, map->first});
  idle_bytes_ -= map->second.bytes;
}

void FeatureMapStore::BecomeIdle(Maps::iterator map) {
  Entry& entry = map->second;
  entry.last_use_nanos = clock_.MonotonicNanos();
  entry.place.value().first = entry.last_use_nanos;
  idle_.insert(std::move(entry.place));
  idle_bytes_ += entry.bytes;
}

bool FeatureMapStore::Add(const Sha256Digest& sha256, MapWeightsPtr weights,
                          Reservation& reservation) {
  Idle place = {{0, sha256}};
  MutexLock lock(&mutex_);
  const auto [map, added] = maps_.try_emplace(sha256);
  if (added) {
    map->second.weights = std::move(weights);
    map->second.bytes = std::exchange(reservation.bytes_, 0);
    map->second.place = place.extract(place.begin());
  } else {
    if (map->second.uses > 0) return false;
    // Somebody wants it: its idle time begins anew.
    BecomeUsed(map);
  }
  BecomeIdle(map);
  return added;
}

MapWeightsPtr FeatureMapStore::RemoveOldest() {
  const auto found = maps_.find(idle_.begin()->second);
  idle_.erase(idle_.begin());
  idle_bytes_ -= found->second.bytes;
  bytes_ -= found->second.bytes;
  MapWeightsPtr weights = std::move(found->second.weights);
  maps_.erase(found);
  return weights;
}

std::int64_t FeatureMapStore::ExpireIdle() {
  const std::int64_t idle_time = absl::ToInt64Nanoseconds(options_.feature_map_idle_time);
  Removed removed;
  MutexLock lock(&mutex_);
  while (!idle_.empty()) {
    const std::int64_t expiry = idle_.begin()->first + idle_time;
    if (expiry > clock_.MonotonicNanos()) return expiry;
    removed.push_back(RemoveOldest());
  }
  return std::numeric_limits<std::int64_t>::max();
}

FeatureMapStore::Usage FeatureMapStore::usage() const {
  MutexLock lock(&mutex_);
  return {static_cast<std::int64_t>(maps_.size()), bytes_};
}

}  // namespace attnd::server
