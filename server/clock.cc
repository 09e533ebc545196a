#include "server/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace attnd::server {
namespace {

class MachineClock final : public Clock {
 public:
  std::int64_t MonotonicNanos() const override {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  absl::Time WallNow() const override { return absl::Now(); }
};

}  // namespace

const Clock& SystemClock() {
  static const MachineClock* const clock = new MachineClock();
  return *clock;
}

}  // namespace attnd::server
