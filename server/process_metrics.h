// What the kernel knows about this process, for the process_* metrics.
//
// Thread-safe. A value that cannot be read is 0.
#ifndef ATTND_SERVER_PROCESS_METRICS_H_
#define ATTND_SERVER_PROCESS_METRICS_H_

#include <cstdint>
#include <string>

namespace attnd::server {

struct ProcessMetrics {
  double cpu_seconds = 0;  // user and system
  std::int64_t resident_bytes = 0;
  std::int64_t virtual_bytes = 0;
  std::int64_t open_fds = 0;
  std::int64_t max_fds = 0;       // the soft limit
  double start_time_seconds = 0;  // since the Unix epoch
  std::int64_t threads = 0;
};

// proc: where the proc file system is.
ProcessMetrics ReadProcessMetrics(const std::string& proc = "/proc");

}  // namespace attnd::server

#endif  // ATTND_SERVER_PROCESS_METRICS_H_
