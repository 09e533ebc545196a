#include "server/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace attnd::server {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

double Number(const std::string& text) {
  double value = 0;
  return absl::SimpleAtod(text, &value) ? value : 0;
}

// Seconds since the epoch at which the machine started, from the line "btime N".
double BootTime(const std::string& proc) {
  std::ifstream file(proc + "/stat");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "btime ")) {
      return Number(line.substr(6));
    }
  }
  return 0;
}

std::int64_t CountEntries(const std::string& directory) {
  std::error_code error;
  std::int64_t count = 0;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    ++count;
  }
  return count;
}

}  // namespace

ProcessMetrics ReadProcessMetrics(const std::string& proc) {
  ProcessMetrics metrics;
  const std::string stat = Contents(proc + "/self/stat");
  // The second field is the program's name in brackets and may hold spaces and brackets; counted
  // from behind it, proc(5)'s field k is fields[k - 3].
  const std::size_t name_end = stat.rfind(") ");
  if (name_end != std::string::npos) {
    const std::vector<std::string> fields = absl::StrSplit(stat.substr(name_end + 2), ' ');
    const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    const std::int64_t page = sysconf(_SC_PAGESIZE);
    if (fields.size() > 21 && ticks > 0) {
      metrics.cpu_seconds = (Number(fields[11]) + Number(fields[12])) / ticks;
      metrics.threads = static_cast<std::int64_t>(Number(fields[17]));
      metrics.start_time_seconds = BootTime(proc) + Number(fields[19]) / ticks;
      metrics.virtual_bytes = static_cast<std::int64_t>(Number(fields[20]));
      metrics.resident_bytes = static_cast<std::int64_t>(Number(fields[21])) * page;
    }
  }
  metrics.open_fds = CountEntries(proc + "/self/fd");
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    metrics.max_fds =
        limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<std::int64_t>(limit.rlim_cur);
  }
  return metrics;
}

}  // namespace attnd::server
