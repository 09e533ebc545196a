// The server's log: one line per session event and per failure, on standard error, as text or JSON.
//
//   Log(LogLevel::kInfo, "session created", {{"session", id}, {"layers", 12}});
//
//   text  2024-05-01T12:00:00.123456Z info session created session=doc-17 layers=12
//   JSON  {"time":"2024-05-01T12:00:00.123456Z","level":"info","event":"session created",
//          "session":"doc-17","layers":12}                                      (on one line)
//
// Thread-safe. A line is rendered by the caller and written by a thread of its own, so that a
// reader of the log that stalls does not stall the server: at 8,192 waiting lines the oldest is
// dropped. Whatever bytes a value holds, a line stays one line and JSON stays valid UTF-8 JSON:
// control characters and quotes are escaped, bytes that are not UTF-8 become U+FFFD, and values are
// cut at 1,024 bytes.
//
// Before StartLogging and after StopLogging lines are dropped.
#ifndef ATTND_SERVER_LOGGING_H_
#define ATTND_SERVER_LOGGING_H_

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

namespace attnd::server {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// One key and value of a line. Keys are literals of [a-z0-9_]. Refers to its text: for use as an
// argument only.
struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(std::string_view(v)) {}
  LogField(std::string_view k, bool v) : key(k), value(v) {}
  LogField(std::string_view k, double v) : key(k), value(v) {}
  template <std::signed_integral T>
  LogField(std::string_view k, T v) : key(k), value(static_cast<std::int64_t>(v)) {}
  template <std::unsigned_integral T>
  requires(!std::is_same_v<T, bool>) LogField(std::string_view k, T v)
      : key(k), value(static_cast<std::uint64_t>(v)) {}

  std::string_view key;
  std::variant<std::string_view, bool, double, std::int64_t, std::uint64_t> value;
};

struct LoggingOptions {
  LogFormat format = LogFormat::kText;
  LogLevel level = LogLevel::kInfo;
  // Where lines go, without the line break, one at a time; standard error if empty.
  std::function<void(std::string_view line)> sink;
};

// Starts the log, or starts it anew with other options. Not to be called while other threads log.
void StartLogging(const LoggingOptions& options);

// Writes what waits and stops the log. Call before leaving main.
void StopLogging();

bool LogEnabled(LogLevel level);

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields = {});

}  // namespace attnd::server

#endif  // ATTND_SERVER_LOGGING_H_
