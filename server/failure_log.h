// Log lines for failures that a client can cause at will, at a bounded rate.
//
// Of each kind at most 10 lines are written a second. Before the first one of a later second, and
// at the end, a line of the same event says in `suppressed` how many were not. Thread-safe.
#ifndef ATTND_SERVER_FAILURE_LOG_H_
#define ATTND_SERVER_FAILURE_LOG_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "server/clock.h"
#include "server/logging.h"

namespace attnd::server {

class FailureLog {
 public:
  static constexpr std::int64_t kLinesPerSecond = 10;

  // The clock must outlive the object.
  explicit FailureLog(const Clock& clock) : clock_(clock) {}
  FailureLog(const FailureLog&) = delete;
  FailureLog& operator=(const FailureLog&) = delete;
  // Writes a last line for each kind with suppressed lines.
  ~FailureLog();

  // `kind` is a literal, the line's event; never text that a client sent, since each kind is kept.
  void Write(LogLevel level, std::string_view kind, std::initializer_list<LogField> fields);

 private:
  struct Window {
    std::int64_t start_nanos = 0;
    std::int64_t written = 0;
    std::int64_t suppressed = 0;
  };

  const Clock& clock_;
  std::mutex mutex_;
  std::map<std::string, Window, std::less<>> windows_;  // guarded by mutex_
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_FAILURE_LOG_H_
