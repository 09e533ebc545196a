// When the calls of a load test begin.
//
// Closed loop (rate 0): as soon as a worker is free. Open loop: call i at begin + i / rate whether
// or not earlier calls have returned; latency is then counted from that moment, so that a server
// that stalls cannot hide the calls it kept from being made (coordinated omission).
//
// Thread-safe: workers draw from one schedule.
#ifndef ATTND_CLIENT_ATTNCTL_BENCH_SCHEDULE_H_
#define ATTND_CLIENT_ATTNCTL_BENCH_SCHEDULE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace attnd::attnctl {

class Schedule {
 public:
  using Clock = std::chrono::steady_clock;

  struct Plan {
    // Calls per second; 0: closed loop.
    double rate = 0;
    // Calls in all; 0: no bound.
    std::int64_t count = 0;
    // Time in all; zero: no bound. Calls meant for later are not made.
    Clock::duration duration = Clock::duration::zero();
  };

  Schedule(const Plan& plan, Clock::time_point begin) : plan_(plan), begin_(begin) {}

  // The moment the next call is meant for, which may lie ahead; nothing when the test is over.
  // `now` is the moment of asking.
  std::optional<Clock::time_point> Next(Clock::time_point now) {
    const std::int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (stopped_.load(std::memory_order_relaxed)) return std::nullopt;
    if (plan_.count > 0 && index >= plan_.count) return std::nullopt;
    const Clock::time_point intended = plan_.rate > 0 ? begin_ + Offset(index) : now;
    if (plan_.duration > Clock::duration::zero() && intended >= begin_ + plan_.duration) {
      return std::nullopt;
    }
    return intended;
  }

  void Stop() { stopped_.store(true, std::memory_order_relaxed); }

 private:
  Clock::duration Offset(std::int64_t index) const {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(static_cast<double>(index) / plan_.rate));
  }

  const Plan plan_;
  const Clock::time_point begin_;
  std::atomic<std::int64_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
};

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_BENCH_SCHEDULE_H_
