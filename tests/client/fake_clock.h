// A clock that stands still except when someone sleeps on it. Thread-safe.
#ifndef ATTND_TESTS_CLIENT_FAKE_CLOCK_H_
#define ATTND_TESTS_CLIENT_FAKE_CLOCK_H_

#include <mutex>
#include <vector>

#include "client/clock.h"

namespace attnd::client {

class FakeClock final : public Clock {
 public:
  absl::Time Now() override {
    std::lock_guard lock(mutex_);
    return now_;
  }
  void Sleep(absl::Duration duration) override {
    std::lock_guard lock(mutex_);
    sleeps_.push_back(duration);
    now_ += duration;
  }
  std::vector<absl::Duration> sleeps() {
    std::lock_guard lock(mutex_);
    return sleeps_;
  }

 private:
  std::mutex mutex_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::vector<absl::Duration> sleeps_;
};

}  // namespace attnd::client

#endif  // ATTND_TESTS_CLIENT_FAKE_CLOCK_H_
