// Order that ThreadSanitizer cannot see: gRPC's library, which is built without it, runs the
// reactions of a call one after another and OnDone last. Nothing in other builds.
#ifndef ATTND_SERVER_TSAN_H_
#define ATTND_SERVER_TSAN_H_

#if defined(__SANITIZE_THREAD__)
#define ATTND_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ATTND_TSAN 1
#endif
#endif

#ifdef ATTND_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace attnd::server {

// Before a reactor is handed to gRPC: all that was done so far comes before its next reaction.
inline void HandOver([[maybe_unused]] void* reactor) {
#ifdef ATTND_TSAN
  __tsan_release(reactor);
#endif
}

// At the start of a reaction.
inline void TakeOver([[maybe_unused]] void* reactor) {
#ifdef ATTND_TSAN
  __tsan_acquire(reactor);
#endif
}

}  // namespace attnd::server

#endif  // ATTND_SERVER_TSAN_H_
