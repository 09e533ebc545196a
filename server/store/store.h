// Where the records of sessions are kept: a map from keys to values, both any bytes, in the order
// of the keys' bytes (unsigned).
//
// Thread-safe. Every function may block on a disk or a network: for the store's own threads, not
// for those that serve calls or compute. A failure is one of
//   RESOURCE_EXHAUSTED  there is no space
//   UNAVAILABLE         reading or writing failed, in a way that may pass
//   DATA_LOSS           what was read is not what was written
//   INVALID_ARGUMENT    a value or a batch beyond its limit; no write of the batch is applied
// After a failure the store goes on by itself once the cause has passed: the caller tries again.
#ifndef ATTND_SERVER_STORE_STORE_H_
#define ATTND_SERVER_STORE_STORE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/write_batch.h"

namespace attnd::server {

// When a write is on stable storage, so that neither a kill nor a loss of power undoes it.
enum class Sync {
  kNow,    // when Apply() returns
  kLater,  // after the next Flush() or Apply(kNow), or when the store gets to it; a kill of the
           // process alone does not undo it
};

// What is known of a store, for metrics and logs.
struct StoreFacts {
  std::string name;
  std::optional<std::int64_t> bytes;  // on disk
  // Opening found damage inside the log of the last writes and dropped what came after it.
  bool dropped_damaged_writes = false;
};

class Store {
 public:
  static constexpr std::int64_t kMaxValueBytes = std::int64_t{64} << 20;
  static constexpr std::int64_t kMaxBatchBytes = std::int64_t{1} << 30;  // as WriteBatch counts

  using Visitor = std::function<bool(std::string_view key, std::string_view value)>;

  virtual ~Store() = default;

  // All writes of the batch or, where it fails, none. After UNAVAILABLE and RESOURCE_EXHAUSTED a
  // later opening may still find them, as one finds a letter that was sent although no receipt
  // came; to apply the same batch once more does no harm.
  virtual absl::Status Apply(const WriteBatch& batch, Sync sync) = 0;

  // The value; nothing where there is no such key.
  virtual absl::StatusOr<std::optional<std::string>> Get(const std::string& key) const = 0;

  // Calls `visitor` for each key from `from` up to, but without, `until`, in ascending order, as of
  // one moment, until it returns false. It must not call the store, and what it is given holds for
  // the call.
  virtual absl::Status Scan(const std::string& from, const std::string& until,
                            const Visitor& visitor) const = 0;

  // Everything applied so far is on stable storage.
  virtual absl::Status Flush() = 0;

  virtual StoreFacts Facts() const = 0;
};

// INVALID_ARGUMENT for a batch that no store takes.
absl::Status CheckLimits(const WriteBatch& batch);

}  // namespace attnd::server

#endif  // ATTND_SERVER_STORE_STORE_H_
