// How many processors and how much memory this process may use, as its control group, its affinity
// mask and the machine allow.
//
// Reads /proc and the cgroup file system, version 2 and version 1, in the process's own group and
// all above it. Files that are absent or unreadable count as no limit. Thread-safe.
#ifndef ATTND_SERVER_CPU_QUOTA_H_
#define ATTND_SERVER_CPU_QUOTA_H_

#include <cstdint>
#include <optional>
#include <string>

namespace attnd::server {

// Where the kernel's files are; tests point it elsewhere.
struct SystemRoot {
  std::string proc = "/proc";
  std::string cgroup = "/sys/fs/cgroup";
};

// Processors' worth of time that the control groups grant, such as 1.5; none without a quota.
std::optional<double> CpuQuota(const SystemRoot& root = {});

// Processors to use: the smallest of the quota rounded up, the affinity mask and the machine's
// count; at least 1.
int UsableCpus(const SystemRoot& root = {});

// Bytes of memory: the smallest of the control groups' limits and the machine's memory; none if not
// even that is known.
std::optional<std::int64_t> MemoryLimit(const SystemRoot& root = {});

}  // namespace attnd::server

#endif  // ATTND_SERVER_CPU_QUOTA_H_
