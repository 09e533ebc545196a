#include "server/runtime.h"

#include "absl/synchronization/mutex.h"

namespace attnd::server {

void TuneRuntime() {
  // Debian's Abseil is built with its detector of lock cycles, about 2 % of the time of a small
  // call.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace attnd::server
