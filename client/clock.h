// Time as the client library sees it: injected, so that tests of retries take no time.
//
// Implementations are thread-safe.
#ifndef ATTND_CLIENT_CLOCK_H_
#define ATTND_CLIENT_CLOCK_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace attnd::client {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  virtual void Sleep(absl::Duration duration) = 0;
};

class RealClock final : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  void Sleep(absl::Duration duration) override { absl::SleepFor(duration); }
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_CLOCK_H_
