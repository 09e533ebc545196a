#include "server/cpu_quota.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attnd::server {
namespace {

std::optional<std::string> FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) {
    return std::nullopt;
  }
  return line;
}

std::optional<std::int64_t> Number(const std::string& text) {
  std::int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::int64_t> NumberIn(const std::string& path) {
  const std::optional<std::string> line = FirstLine(path);
  return line ? Number(*line) : std::nullopt;
}

template <typename T>
void Lower(std::optional<T>& least, const std::optional<T>& value) {
  if (value && (!least || *value < *least)) {
    least = value;
  }
}

// The directories of the process's group for a version 1 controller, or for version 2 (empty name),
// and of all groups above. A container often sees its own group mounted as the root while /proc
// names the path on the host; the parts that do not exist are simply not found, and the root
// counts.
std::vector<std::string> GroupDirectories(const SystemRoot& root, const std::string& controller) {
  std::ifstream groups(root.proc + "/self/cgroup");
  std::vector<std::string> directories;
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) {
      continue;
    }
    std::vector<std::string> mounts;
    if (controller.empty()) {
      if (!parts[1].empty()) {
        continue;
      }
      // Beside version 1 controllers, version 2 is mounted at `unified`.
      mounts = {root.cgroup, root.cgroup + "/unified"};
    } else {
      const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
      if (std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
        continue;
      }
      mounts = {absl::StrCat(root.cgroup, "/", parts[1]),
                absl::StrCat(root.cgroup, "/", controller)};
    }
    for (const std::string& mount : mounts) {
      for (std::string path = parts[2]; !path.empty(); path.resize(path.rfind('/'))) {
        if (!absl::StartsWith(path, "/")) {
          break;
        }
        directories.push_back(mount + (path == "/" ? "" : path));
      }
      directories.push_back(mount);
    }
  }
  return directories;
}

// cpu.max holds "QUOTA PERIOD" or "max PERIOD", in microseconds.
std::optional<double> QuotaOfVersion2(const std::string& directory) {
  const std::optional<std::string> line = FirstLine(directory + "/cpu.max");
  if (!line) {
    return std::nullopt;
  }
  const std::vector<std::string> parts = absl::StrSplit(*line, ' ');
  const std::optional<std::int64_t> quota = Number(parts[0]);
  const std::optional<std::int64_t> period =
      parts.size() > 1 ? Number(parts[1]) : std::optional<std::int64_t>(100'000);
  if (!quota || !period || *quota <= 0 || *period <= 0) {
    return std::nullopt;
  }
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// A quota of -1 is none.
std::optional<double> QuotaOfVersion1(const std::string& directory) {
  const std::optional<std::int64_t> quota = NumberIn(directory + "/cpu.cfs_quota_us");
  const std::optional<std::int64_t> period = NumberIn(directory + "/cpu.cfs_period_us");
  if (!quota || !period || *quota <= 0 || *period <= 0) {
    return std::nullopt;
  }
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

// Processors in the affinity mask; none if the kernel does not say.
std::optional<int> AffinityCpus() {
  // The kernel refuses a mask smaller than its own; 8,192 processors are the most that Linux is
  // built for.
  constexpr std::size_t kCpus = 8192;
  std::vector<cpu_set_t> mask(kCpus / CPU_SETSIZE);
  const std::size_t bytes = mask.size() * sizeof(cpu_set_t);
  if (sched_getaffinity(0, bytes, mask.data()) != 0) {
    return std::nullopt;
  }
  return CPU_COUNT_S(bytes, mask.data());
}

// MemTotal of /proc/meminfo, "MemTotal:  16384 kB".
std::optional<std::int64_t> MachineMemory(const SystemRoot& root) {
  std::ifstream file(root.proc + "/meminfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (parts.size() >= 2 && parts[0] == "MemTotal:") {
      const std::optional<std::int64_t> kib = Number(parts[1]);
      if (kib && *kib > 0 && *kib <= INT64_MAX / 1024) {
        return *kib * 1024;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> CpuQuota(const SystemRoot& root) {
  std::optional<double> least;
  for (const std::string& directory : GroupDirectories(root, "")) {
    Lower(least, QuotaOfVersion2(directory));
  }
  for (const std::string& directory : GroupDirectories(root, "cpu")) {
    Lower(least, QuotaOfVersion1(directory));
  }
  return least;
}

int UsableCpus(const SystemRoot& root) {
  std::optional<int> least = AffinityCpus();
  if (const unsigned machine = std::thread::hardware_concurrency(); machine > 0) {
    Lower(least, std::optional<int>(static_cast<int>(machine)));
  }
  if (const std::optional<double> quota = CpuQuota(root); quota && *quota < 1e6) {
    Lower(least, std::optional<int>(static_cast<int>(std::ceil(*quota))));
  }
  return std::max(1, least.value_or(1));
}

std::optional<std::int64_t> MemoryLimit(const SystemRoot& root) {
  std::optional<std::int64_t> least = MachineMemory(root);
  const auto lower = [&least](const std::optional<std::int64_t>& limit) {
    if (limit && *limit > 0) {
      Lower(least, limit);
    }
  };
  for (const std::string& directory : GroupDirectories(root, "")) {
    lower(NumberIn(directory + "/memory.max"));
  }
  // Version 1 writes "no limit" as the largest multiple of a page, which no machine's memory
  // exceeds.
  for (const std::string& directory : GroupDirectories(root, "memory")) {
    lower(NumberIn(directory + "/memory.limit_in_bytes"));
  }
  return least;
}

}  // namespace attnd::server
