// Files that cannot be written while a test says so. Thread-safe.
#ifndef ATTND_TESTS_SERVER_STORE_FAILING_FILE_SYSTEM_H_
#define ATTND_TESTS_SERVER_STORE_FAILING_FILE_SYSTEM_H_

#include <rocksdb/file_system.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

namespace attnd::server {

enum class WriteFailure {
  kNone,
  kNoSpace,     // as ENOSPC of a write
  kIoError,     // as EIO of a write
  kSyncError,   // as EIO of fsync
  kShortWrite,  // half of what is to be written, then no space
};

class FailingFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  FailingFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}

  void Fail(WriteFailure failure) { failure_ = failure; }

  const char* Name() const override { return "FailingFileSystem"; }

  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* result,
                                    rocksdb::IODebugContext* debug) override {
    if (failure_ == WriteFailure::kNoSpace) return NoSpace();
    std::unique_ptr<rocksdb::FSWritableFile> file;
    rocksdb::IOStatus status = target()->NewWritableFile(name, options, &file, debug);
    if (status.ok()) *result = std::make_unique<File>(std::move(file), failure_);
    return status;
  }

 private:
  static rocksdb::IOStatus NoSpace() {
    rocksdb::IOStatus status = rocksdb::IOStatus::NoSpace("No space left on device");
    status.SetRetryable(true);
    return status;
  }

  class File final : public rocksdb::FSWritableFileOwnerWrapper {
   public:
    File(std::unique_ptr<rocksdb::FSWritableFile>&& file, const std::atomic<WriteFailure>& failure)
        : FSWritableFileOwnerWrapper(std::move(file)), failure_(failure) {}

    using FSWritableFileOwnerWrapper::Append;
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* debug) override {
      switch (failure_) {
        case WriteFailure::kNoSpace:
          return NoSpace();
        case WriteFailure::kIoError:
          return rocksdb::IOStatus::IOError("Input/output error");
        case WriteFailure::kShortWrite:
          target()->Append({data.data(), data.size() / 2}, options, debug).PermitUncheckedError();
          return NoSpace();
        case WriteFailure::kNone:
        case WriteFailure::kSyncError:
          return target()->Append(data, options, debug);
      }
      return rocksdb::IOStatus::NotSupported();
    }
    rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                             const rocksdb::DataVerificationInfo&,
                             rocksdb::IODebugContext* debug) override {
      return Append(data, options, debug);
    }
    rocksdb::IOStatus Sync(const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override {
      if (failure_ == WriteFailure::kSyncError) {
        return rocksdb::IOStatus::IOError("Input/output error");
      }
      return target()->Sync(options, debug);
    }
    rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options,
                            rocksdb::IODebugContext* debug) override {
      return Sync(options, debug);
    }

   private:
    const std::atomic<WriteFailure>& failure_;
  };

  std::atomic<WriteFailure> failure_ = WriteFailure::kNone;
};

}  // namespace attnd::server

#endif  // ATTND_TESTS_SERVER_STORE_FAILING_FILE_SYSTEM_H_
