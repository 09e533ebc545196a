#include "server/failure_log.h"

#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>

#include "server/logging.h"

namespace attnd::server {

FailureLog::~FailureLog() {
  for (const auto& [kind, window] : windows_) {
    if (window.suppressed > 0) {
      Log(LogLevel::kWarning, kind, {{"suppressed", window.suppressed}});
    }
  }
}

void FailureLog::Write(LogLevel level, std::string_view kind,
                       std::initializer_list<LogField> fields) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  if (!LogEnabled(level)) {
    return;
  }
  std::int64_t suppressed = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = windows_.find(kind);
    if (found == windows_.end()) {
      found = windows_.emplace(std::string(kind), Window{}).first;
    }
    Window& window = found->second;
    const std::int64_t now = clock_.MonotonicNanos();
    if (now - window.start_nanos >= kSecond) {
      suppressed = window.suppressed;
      window = {.start_nanos = now, .written = 0, .suppressed = 0};
    }
    if (window.written >= kLinesPerSecond) {
      ++window.suppressed;
      return;
    }
    ++window.written;
  }
  if (suppressed > 0) {
    Log(LogLevel::kWarning, kind, {{"suppressed", suppressed}});
  }
  Log(level, kind, fields);
}

}  // namespace attnd::server
