// A clock that moves when a test says so. Thread-safe.
#ifndef ATTND_TESTS_SERVER_FAKE_CLOCK_H_
#define ATTND_TESTS_SERVER_FAKE_CLOCK_H_

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "server/clock.h"

namespace attnd::server {

class FakeClock final : public Clock {
 public:
  std::int64_t MonotonicNanos() const override { return nanos_.load(); }
  absl::Time WallNow() const override {
    return absl::FromUnixSeconds(1'700'000'000) + absl::Nanoseconds(nanos_.load() + skew_.load());
  }

  void Advance(absl::Duration by) { nanos_.fetch_add(absl::ToInt64Nanoseconds(by)); }
  // Moves the wall clock alone, as an administrator or a time daemon would.
  void JumpWall(absl::Duration by) { skew_.fetch_add(absl::ToInt64Nanoseconds(by)); }

 private:
  std::atomic<std::int64_t> nanos_{1'000'000'000};
  std::atomic<std::int64_t> skew_{0};
};

}  // namespace attnd::server

#endif  // ATTND_TESTS_SERVER_FAKE_CLOCK_H_
