#include "server/runtime.h"

#include <malloc.h>

#include "absl/synchronization/mutex.h"

namespace attnd::server {

void TuneRuntime() {
  // By default glibc maps and unmaps the memory of every large message, and the page faults are
  // half of such a message's cost (1 MiB echo: 1.8 ms, with these settings 1.0 ms).
  mallopt(M_MMAP_THRESHOLD, 256 << 20);
  mallopt(M_TRIM_THRESHOLD, 512 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
  // Debian's Abseil is built with its detector of lock cycles, about 2 % of the time of a small
  // call.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace attnd::server
