// The open streams, so that the server can end them all when it shuts down and find those whose
// peer does not read. Thread-safe.
#ifndef ATTND_SERVER_STREAM_REGISTRY_H_
#define ATTND_SERVER_STREAM_REGISTRY_H_

#include <cstdint>
#include <set>

#include "absl/base/thread_annotations.h"
#include "server/mutex.h"

namespace attnd::server {

// What the registry asks of a stream. Calls come under the registry's lock: they must not block,
// and must not remove the stream.
class OpenStream {
 public:
  virtual ~OpenStream() = default;
  // Ends the stream after the messages it has taken, with SHUTTING_DOWN and where it stood.
  virtual void Drain() = 0;
  // Ends the stream if one of its answers has not been taken for `patience_nanos`.
  virtual void EndIfStuck(std::int64_t now_nanos, std::int64_t patience_nanos) = 0;
};

class StreamRegistry {
 public:
  // A stream that is added after Drain() is drained at once.
  void Add(OpenStream* stream) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    streams_.insert(stream);
    if (draining_) stream->Drain();
  }
  void Remove(OpenStream* stream) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    streams_.erase(stream);
  }
  void Drain() ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    draining_ = true;
    for (OpenStream* stream : streams_) stream->Drain();
  }
  void EndStuck(std::int64_t now_nanos, std::int64_t patience_nanos) ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    for (OpenStream* stream : streams_) stream->EndIfStuck(now_nanos, patience_nanos);
  }

 private:
  Mutex mutex_;
  std::set<OpenStream*> streams_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_STREAM_REGISTRY_H_
