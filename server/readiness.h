// Whether the server wants traffic, as /readyz tells it. Thread-safe.
#ifndef ATTND_SERVER_READINESS_H_
#define ATTND_SERVER_READINESS_H_

#include <atomic>

namespace attnd::server {

class Readiness {
 public:
  enum class State { kStarting, kReady, kDraining };

  void Set(State state) { state_.store(state, std::memory_order_release); }
  State Get() const { return state_.load(std::memory_order_acquire); }

 private:
  std::atomic<State> state_{State::kStarting};
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_READINESS_H_
