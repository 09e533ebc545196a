// Whether a call is still wanted, and what to do when it is not. Thread-safe.
#ifndef ATTND_SERVER_CANCELLATION_H_
#define ATTND_SERVER_CANCELLATION_H_

#include <atomic>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "server/mutex.h"

namespace attnd::server {

class Cancellation {
 public:
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }

  // Fires once; later calls do nothing.
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_) {
    std::function<void()> action;
    {
      MutexLock lock(&mutex_);
      cancelled_.store(true, std::memory_order_relaxed);
      action.swap(action_);
    }
    if (action) action();
  }

  // Runs `action` when the call is cancelled, at once if it was before. Replaces an earlier action;
  // an empty one takes it back. It must not block.
  void WhenCancelled(std::function<void()> action) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(&mutex_);
      if (!cancelled()) {
        action_ = std::move(action);
        return;
      }
    }
    if (action) action();
  }

 private:
  std::atomic<bool> cancelled_{false};
  Mutex mutex_;
  std::function<void()> action_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_CANCELLATION_H_
