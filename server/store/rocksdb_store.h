// A store on a local disk: RocksDB, one process for a directory.
//
// Opening finds everything that was on stable storage, and after a kill of the process everything
// that Apply() had returned for. A batch that was being written is dropped (it was never whole).
// Damage inside the log ends it there: what came before is kept, what came after is dropped, as no
// batch may be without those before it, and Facts() tells. A loss of power can leave such damage
// in what was not on stable storage. Damage in other files is DATA_LOSS when it is read; whatever
// does not need the damaged block is not affected.
//
// After a failure to write, Apply() and Flush() first try to write a file of their own. Once that
// succeeds they open the directory again; reading waits meanwhile, and fails only where opening
// fails all the same. RocksDB's own Resume() is not used: where nothing was written since the last
// memtable it keeps the log that has failed, at whose next use Debian's RocksDB, which is built
// with its assertions, ends the process.
//
// Thread-safe. Writes wait for each other; so whoever wants many to share a sync puts them into one
// batch.
#ifndef ATTND_SERVER_STORE_ROCKSDB_STORE_H_
#define ATTND_SERVER_STORE_ROCKSDB_STORE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/mutex.h"
#include "server/store/store.h"

namespace rocksdb {
class DB;
class Env;
class Status;
}  // namespace rocksdb

namespace attnd::server {

struct RocksDbStoreOptions {
  std::string directory;  // is made where there is none
  rocksdb::Env* env =
      nullptr;  // files as tests want them; outlives the store. The machine's if null
};

class RocksDbStore final : public Store {
 public:
  // FAILED_PRECONDITION where a process has the directory open, this one included.
  static absl::StatusOr<std::unique_ptr<RocksDbStore>> Open(const RocksDbStoreOptions& options);
  // Everything applied is on stable storage, unless that fails.
  ~RocksDbStore() override;
  RocksDbStore(const RocksDbStore&) = delete;
  RocksDbStore& operator=(const RocksDbStore&) = delete;

  absl::Status Apply(const WriteBatch& batch, Sync sync) override;
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) const override;
  absl::Status Scan(const std::string& from, const std::string& until,
                    const Visitor& visitor) const override;
  absl::Status Flush() override;
  // Bytes of all files in the directory.
  StoreFacts Facts() const override;

 private:
  explicit RocksDbStore(const RocksDbStoreOptions& options);

  using WriteFunction = std::function<rocksdb::Status(rocksdb::DB&)>;

  absl::Status OpenDb();
  // Write() and, where that failed before or fails now in a way that may pass, Recover() and once
  // more.
  absl::Status WriteOrRecover(const WriteFunction& write) ABSL_LOCKS_EXCLUDED(write_mutex_);
  absl::Status Write(const WriteFunction& write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status Recover() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status Closed() const;

  const RocksDbStoreOptions options_;
  std::atomic<bool> dropped_damaged_writes_ = false;
  // One call that writes or syncs at a time: one beside a call that fails could use the failed log.
  // Taken before mutex_.
  Mutex write_mutex_;
  bool must_recover_ ABSL_GUARDED_BY(write_mutex_) = false;
  // Exclusive for opening again, shared for everything else.
  mutable std::shared_mutex mutex_;
  std::unique_ptr<rocksdb::DB> db_;  // guarded by mutex_; null where opening again has failed
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_STORE_ROCKSDB_STORE_H_
