#include "server/store/rocksdb_store.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/status.h>
#include <rocksdb/write_batch.h>

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/store/rocksdb_options.h"

namespace attnd::server {
namespace {

absl::Status ToStatus(const rocksdb::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("store: ", status.ToString());
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  if (status.IsCorruption()) return absl::DataLossError(message);
  if (status.IsInvalidArgument()) return absl::InvalidArgumentError(message);
  return absl::UnavailableError(message);
}

rocksdb::Status ToRocksDb(const WriteBatch& batch, rocksdb::WriteBatch& out) {
  for (const WriteBatch::Write& write : batch.writes()) {
    rocksdb::Status status;
    switch (write.kind) {
      case WriteBatch::Kind::kPut:
        status = out.Put(write.key, write.value);
        break;
      case WriteBatch::Kind::kDelete:
        status = out.Delete(write.key);
        break;
      case WriteBatch::Kind::kDeleteRange:
        if (write.key < write.value) status = out.DeleteRange(write.key, write.value);
        break;
    }
    if (!status.ok()) return status;
  }
  return {};
}

// A write to a file of its own, as large as it may be without mattering, to see whether opening is
// worth trying. A probe that a kill left behind is overwritten by the next.
rocksdb::Status Probe(rocksdb::Env* env, const std::string& directory) {
  constexpr std::size_t kProbeBytes = std::size_t{1} << 20;
  const std::string file = directory + "/probe";
  rocksdb::Status status = rocksdb::WriteStringToFile(env, std::string(kProbeBytes, '\0'), file,
                                                      /*should_sync=*/true);
  env->DeleteFile(file).PermitUncheckedError();
  return status;
}

bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
}

// RocksDB has no code of its own for a lock that another holds.
bool IsHeldByAnother(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  return status.IsIOError() && (text.find("lock file") != std::string::npos ||
                                text.find("lock hold by current process") != std::string::npos);
}

}  // namespace

RocksDbStore::RocksDbStore(const RocksDbStoreOptions& options) : options_(options) {}

absl::StatusOr<std::unique_ptr<RocksDbStore>> RocksDbStore::Open(
    const RocksDbStoreOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(options.directory, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("store: cannot make directory ", options.directory, ": ", error.message()));
  }
  std::unique_ptr<RocksDbStore> store(new RocksDbStore(options));
  const std::unique_lock<std::shared_mutex> lock(store->mutex_);
  if (absl::Status status = store->OpenDb(); !status.ok()) return status;
  return store;
}

RocksDbStore::~RocksDbStore() {
  MutexLock lock(&write_mutex_);
  if (db_ == nullptr) return;
  // What fails here was promised for later only. After a failure the log takes no further calls.
  if (!must_recover_) db_->FlushWAL(/*sync=*/true).PermitUncheckedError();
  db_->Close().PermitUncheckedError();
}

absl::Status RocksDbStore::OpenDb() {
  rocksdb::Options options = MakeRocksDbOptions();
  if (options_.env != nullptr) options.env = options_.env;
  rocksdb::DB* db = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(options, options_.directory, &db);
  if (status.IsCorruption()) {
    // In the log, it may be passed over; in other files, it is found again.
    options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
    status = rocksdb::DB::Open(options, options_.directory, &db);
    if (status.ok()) dropped_damaged_writes_ = true;
  }
  if (IsHeldByAnother(status)) {
    return absl::FailedPreconditionError(
        absl::StrCat("store: directory ", options_.directory, " is in use by another process"));
  }
  if (!status.ok()) return ToStatus(status);
  db_.reset(db);
  return absl::OkStatus();
}

absl::Status RocksDbStore::Closed() const {
  return absl::UnavailableError(absl::StrCat("store: directory ", options_.directory,
                                             " could not be opened again after a failure"));
}

absl::Status RocksDbStore::Recover() {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  if (db_ != nullptr) {
    // Reading ends with closing: not before there is hope.
    if (const rocksdb::Status probe = Probe(db_->GetEnv(), options_.directory); !probe.ok()) {
      return ToStatus(probe);
    }
    db_->Close().PermitUncheckedError();
    db_.reset();
  }
  absl::Status status = OpenDb();
  if (status.ok()) must_recover_ = false;
  return status;
}

absl::Status RocksDbStore::Write(const WriteFunction& write) {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (db_ == nullptr) return Closed();
  absl::Status status = ToStatus(write(*db_));
  must_recover_ = MayPass(status);
  return status;
}

absl::Status RocksDbStore::WriteOrRecover(const WriteFunction& write) {
  MutexLock lock(&write_mutex_);
  if (!must_recover_) {
    absl::Status status = Write(write);
    if (!must_recover_) return status;
  }
  if (absl::Status status = Recover(); !status.ok()) return status;
  return Write(write);
}

absl::Status RocksDbStore::Apply(const WriteBatch& batch, Sync sync) {
  if (absl::Status status = CheckLimits(batch); !status.ok()) return status;
  rocksdb::WriteBatch writes(static_cast<std::size_t>(batch.bytes()));
  if (const rocksdb::Status status = ToRocksDb(batch, writes); !status.ok()) {
    return ToStatus(status);
  }
  rocksdb::WriteOptions options;
  options.sync = sync == Sync::kNow;
  return WriteOrRecover([&](rocksdb::DB& db) { return db.Write(options, &writes); });
}

absl::Status RocksDbStore::Flush() {
  return WriteOrRecover([](rocksdb::DB& db) { return db.FlushWAL(/*sync=*/true); });
}

absl::StatusOr<std::optional<std::string>> RocksDbStore::Get(const std::string& key) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (db_ == nullptr) return Closed();
  std::string value;
  const rocksdb::Status status = db_->Get({}, key, &value);
  if (status.IsNotFound()) return std::nullopt;
  if (!status.ok()) return ToStatus(status);
  return value;
}

absl::Status RocksDbStore::Scan(const std::string& from, const std::string& until,
                                const Visitor& visitor) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  if (db_ == nullptr) return Closed();
  if (until <= from) return absl::OkStatus();
  const rocksdb::Slice bound(until);
  rocksdb::ReadOptions options;
  options.iterate_upper_bound = &bound;
  options.fill_cache = false;  // what is scanned is not soon read again
  const std::unique_ptr<rocksdb::Iterator> iterator(db_->NewIterator(options));
  for (iterator->Seek(from); iterator->Valid(); iterator->Next()) {
    const rocksdb::Slice key = iterator->key();
    const rocksdb::Slice value = iterator->value();
    if (!visitor({key.data(), key.size()}, {value.data(), value.size()})) break;
  }
  return ToStatus(iterator->status());
}

StoreFacts RocksDbStore::Facts() const {
  std::int64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator i(options_.directory, error), end; !error && i != end;
       i.increment(error)) {
    // Files come and go meanwhile; one that went counts nothing.
    std::error_code gone;
    const std::uintmax_t size = i->file_size(gone);
    if (!gone) bytes += static_cast<std::int64_t>(size);
  }
  StoreFacts facts = {.name = "rocksdb", .bytes = std::nullopt};
  if (!error) facts.bytes = bytes;
  facts.dropped_damaged_writes = dropped_damaged_writes_;
  return facts;
}

}  // namespace attnd::server
