// A store in memory, which ends with the process: for servers that keep nothing, and for tests.
//
// Thread-safe. Bounded by nothing but what its users write.
#ifndef ATTND_SERVER_STORE_MEMORY_STORE_H_
#define ATTND_SERVER_STORE_MEMORY_STORE_H_

#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/mutex.h"
#include "server/store/store.h"

namespace attnd::server {

class MemoryStore final : public Store {
 public:
  absl::Status Apply(const WriteBatch& batch, Sync sync) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) const override
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Holds the lock meanwhile.
  absl::Status Scan(const std::string& from, const std::string& until,
                    const Visitor& visitor) const override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Flush() override { return absl::OkStatus(); }
  StoreFacts Facts() const override { return {.name = "memory", .bytes = {}}; }

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_STORE_MEMORY_STORE_H_
