// std::mutex and std::condition_variable with clang's thread-safety annotations.
//
// Used instead of absl::Mutex because the packaged Abseil is not instrumented: ThreadSanitizer sees
// the happens-before edges of std::mutex and none of absl::Mutex.
//
// Thread-safe, as what they wrap. A CondVar is used with one Mutex only.
#ifndef ATTND_CLIENT_MUTEX_H_
#define ATTND_CLIENT_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace attnd::client {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Returns false when `deadline` passed; spurious wake-ups return true.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    // The largest time points overflow inside the standard library's conversion between clocks.
    const auto latest = std::chrono::steady_clock::now() + std::chrono::hours(24 * 365);
    const bool in_time =
        cv_.wait_until(lock, deadline < latest ? deadline : latest) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_MUTEX_H_
