// The calls whose end depends on their peer: open streams, and unary calls whose answer has not
// left. So the server can end all streams when it shuts down, and find peers that do not read.
//
// Thread-safe.
#ifndef ATTND_SERVER_CALL_REGISTRY_H_
#define ATTND_SERVER_CALL_REGISTRY_H_

#include <cstdint>
#include <list>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "server/mutex.h"

namespace attnd::server {

class OpenCall {
 public:
  virtual ~OpenCall() = default;

  // Ends a stream after the message that it is handling, with SHUTTING_DOWN and where it stood.
  // Comes under the registry's lock: it must neither block nor retire the call.
  virtual void Drain() {}
  // Whether the peer has left an answer unread for `patience_nanos`. Under the registry's lock.
  virtual bool IsStuck(std::int64_t now_nanos, std::int64_t patience_nanos) = 0;
  // Comes before EndStuck(), under the registry's lock: takes hold of what it uses that does not
  // belong to the call, and may be gone once the call has retired.
  virtual void HoldToEnd() = 0;
  // Ends a call that is stuck. Without the lock: the call may retire meanwhile, or have retired.
  virtual void EndStuck() = 0;

 private:
  friend class CallRegistry;
  std::list<OpenCall*>::iterator place_;
  bool ending_ = false;   // EndStuck is running
  bool retired_ = false;  // while it ran
};

class CallRegistry {
 public:
  // A call that is added after Drain() is drained at once.
  void Add(OpenCall* call) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    call->place_ = calls_.insert(calls_.end(), call);
    if (draining_) call->Drain();
  }

  // Removes and deletes a call; its last act.
  void Retire(OpenCall* call) ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      MutexLock lock(&mutex_);
      calls_.erase(call->place_);
      if (call->ending_) {
        call->retired_ = true;
        return;
      }
    }
    delete call;
  }

  void Drain() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    draining_ = true;
    for (OpenCall* call : calls_) call->Drain();
  }

  // For one thread at a time.
  void EndStuck(std::int64_t now_nanos, std::int64_t patience_nanos) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<OpenCall*> stuck;
    {
      MutexLock lock(&mutex_);
      for (OpenCall* call : calls_) {
        if (!call->IsStuck(now_nanos, patience_nanos)) continue;
        call->HoldToEnd();
        call->ending_ = true;
        stuck.push_back(call);
      }
    }
    for (OpenCall* call : stuck) {
      call->EndStuck();
      bool retired = false;
      {
        MutexLock lock(&mutex_);
        call->ending_ = false;
        retired = call->retired_;
      }
      if (retired) delete call;
    }
  }

 private:
  Mutex mutex_;
  std::list<OpenCall*> calls_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_CALL_REGISTRY_H_
