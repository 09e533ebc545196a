#include "server/store/rocksdb_options.h"

#include <rocksdb/listener.h>

#include <cstddef>
#include <memory>

namespace attnd::server {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// RocksDB's own recovery, of which max_bgerror_resume_count is but one part, would go on with a log
// that has failed; see rocksdb_store.h.
class NoRecoveryOfItsOwn final : public rocksdb::EventListener {
 public:
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
};

}  // namespace

rocksdb::Options MakeRocksDbOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.paranoid_checks = true;

  // Opening replays the log, which is what the memtables hold: 96 MiB and a batch at most. 90 MB
  // take 0.4 to 0.5 s.
  options.write_buffer_size = 32 * kMiB;
  options.max_write_buffer_number = 3;
  options.max_total_wal_size = 96 * kMiB;
  // After an opening there is no log left that was cut.
  options.avoid_flush_during_recovery = false;
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;

  // Neither the number of files nor that of changes to them makes opening slow.
  options.max_open_files = 256;
  options.skip_stats_update_on_db_open = true;
  options.max_manifest_file_size = 16 * kMiB;
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;

  options.max_background_jobs = 2;
  // The vectors that records are made of do not compress.
  options.compression = rocksdb::CompressionType::kNoCompression;
  // Values of 64 KiB and 1 MiB under random keys: in files of their own (enable_blob_files) they
  // are written 2.8 times instead of 3.3 and 3.8 times, at the same speed within noise, but scanned
  // at 0.4 GB/s instead of 1.1 and 1.6. A restore scans: they stay in the tables.

  options.info_log_level = rocksdb::InfoLogLevel::ERROR_LEVEL;
  options.max_log_file_size = kMiB;
  options.keep_log_file_num = 4;

  // The store recovers from errors when it is used; not a thread of RocksDB beside it.
  options.max_bgerror_resume_count = 0;
  options.listeners.push_back(std::make_shared<NoRecoveryOfItsOwn>());
  return options;
}

}  // namespace attnd::server
