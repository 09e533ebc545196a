// The learned feature maps that clients have uploaded, by the SHA-256 of their content.
//
// Sessions and uploads share a map by holding what Find() gives. A map that nobody holds is kept
// until its memory is needed (of those that nobody holds, the one whose last use is longest ago
// goes first) or nobody has used it for feature_map_idle_time. The memory of all maps, and of those
// that are being uploaded, is at most max_feature_map_bytes.
//
// Thread-safe. The lock is held for bookkeeping only; maps are destroyed outside it. What Find()
// and Reservations refer to: the store outlives them. Expiry does not poll: ExpireIdle() tells when
// it is worth calling again.
#ifndef ATTND_SERVER_FEATURE_MAP_STORE_H_
#define ATTND_SERVER_FEATURE_MAP_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "engine/linear/map_weights.h"
#include "server/clock.h"
#include "server/mutex.h"
#include "server/options.h"
#include "server/sha256.h"

namespace attnd::server {

using MapWeightsPtr = std::shared_ptr<const engine::MapWeights>;

class FeatureMapStore {
 public:
  // What a map costs beside its weights: its places in two trees. So that small maps are limited in
  // number too.
  static constexpr std::int64_t kEntryBytes = 512;

  // The referenced objects outlive the store.
  FeatureMapStore(const Options& options, const Clock& clock) : options_(options), clock_(clock) {}
  FeatureMapStore(const FeatureMapStore&) = delete;
  FeatureMapStore& operator=(const FeatureMapStore&) = delete;

  // Memory of a map that is being uploaded; gives it back when it is destroyed. For one thread.
  class Reservation {
   public:
    explicit Reservation(FeatureMapStore& store) : store_(store) {}
    ~Reservation() { store_.GiveBack(bytes_); }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    // Raises what is reserved to `bytes` and kEntryBytes, making room for it.
    // FEATURE_MAP_BYTES where maps in use and uploads leave none.
    absl::Status GrowTo(std::int64_t bytes);

   private:
    friend class FeatureMapStore;
    FeatureMapStore& store_;
    std::int64_t bytes_ = 0;
  };

  // The map, which is in use until the last copy of the pointer goes; null where there is none.
  MapWeightsPtr Find(const Sha256Digest& sha256) ABSL_LOCKS_EXCLUDED(mutex_);

  // Adds a map whose memory `reservation` holds and which nobody uses yet. False, leaving the
  // reservation as it is, where the map is there already.
  bool Add(const Sha256Digest& sha256, MapWeightsPtr weights, Reservation& reservation)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Removes maps that nobody has used for long. Returns the monotonic time of the next expiry,
  // which may come later if the map is used; INT64_MAX where all are in use.
  std::int64_t ExpireIdle() ABSL_LOCKS_EXCLUDED(mutex_);

  struct Usage {
    std::int64_t maps = 0;
    std::int64_t bytes = 0;  // of maps and uploads
  };
  Usage usage() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // Maps that nobody uses: the last use and the name.
  using Idle = std::set<std::pair<std::int64_t, Sha256Digest>>;
  struct Entry {
    MapWeightsPtr weights;
    std::int64_t bytes = 0;
    std::int64_t uses = 0;
    std::int64_t last_use_nanos = 0;  // where it stands in idle_, while there are no uses
    Idle::node_type place;            // meanwhile out of idle_: the end of a use must not allocate
  };
  using Maps = std::map<Sha256Digest, Entry>;
  using Removed = std::vector<MapWeightsPtr>;

  absl::Status Grow(std::int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveBack(std::int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void EndUse(const Sha256Digest& sha256) ABSL_LOCKS_EXCLUDED(mutex_);
  void BecomeUsed(Maps::iterator map) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BecomeIdle(Maps::iterator map) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes out the map that was idle longest; the caller destroys it outside the lock.
  MapWeightsPtr RemoveOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options& options_;
  const Clock& clock_;

  mutable Mutex mutex_;
  Maps maps_ ABSL_GUARDED_BY(mutex_);
  Idle idle_ ABSL_GUARDED_BY(mutex_);
  std::int64_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of maps and reservations
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_FEATURE_MAP_STORE_H_
