// Time as the server sees it: injected, so that tests of time-to-live, deadlines and rate limits
// take no time.
//
// Implementations are thread-safe. Durations are measured on the monotonic clock only; the wall
// clock may jump and is for display.
#ifndef ATTND_SERVER_CLOCK_H_
#define ATTND_SERVER_CLOCK_H_

#include <cstdint>

#include "absl/time/time.h"

namespace attnd::server {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary moment; never goes back.
  virtual std::int64_t MonotonicNanos() const = 0;
  virtual absl::Time WallNow() const = 0;
};

// The machine's clocks. Lives for ever.
const Clock& SystemClock();

}  // namespace attnd::server

#endif  // ATTND_SERVER_CLOCK_H_
