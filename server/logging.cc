#include "server/logging.h"

#include <spdlog/async_logger.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "server/log_text.h"

namespace attnd::server {
namespace {

constexpr std::size_t kQueueLines = 8192;

// Hands formatted lines to a function.
class FunctionSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FunctionSink(std::function<void(std::string_view)> function)
      : function_(std::move(function)) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    function_(std::string_view(line.data(), line.size() - 1));  // without the line break
  }
  void flush_() override {}

 private:
  std::function<void(std::string_view)> function_;
};

struct Output {
  std::shared_ptr<spdlog::details::thread_pool> thread;
  std::shared_ptr<spdlog::async_logger> logger;
  LogFormat format = LogFormat::kText;
};

constexpr int kOff = static_cast<int>(LogLevel::kError) + 1;
std::atomic<int> g_level{kOff};
std::mutex g_mutex;

// Guarded by g_mutex. Never destroyed, so that a line logged while the process ends meets a live
// object.
Output& GlobalOutput() {
  static auto* const output = new Output();
  return *output;
}

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

void AppendNumber(std::string& out, LogFormat format, double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
  if (format == LogFormat::kJson && !std::isfinite(value)) {
    AppendJsonString(out, text);  // JSON has no such number
  } else {
    out.append(text);
  }
}

void AppendValue(std::string& out, LogFormat format, const LogField& field) {
  std::visit(
      [&out, format](auto value) {
        using T = decltype(value);
        if constexpr (std::is_same_v<T, std::string_view>) {
          format == LogFormat::kJson ? AppendJsonString(out, value) : AppendLogfmtValue(out, value);
        } else if constexpr (std::is_same_v<T, bool>) {
          out += value ? "true" : "false";
        } else if constexpr (std::is_same_v<T, double>) {
          AppendNumber(out, format, value);
        } else {
          out += std::to_string(value);
        }
      },
      field.value);
}

std::string Render(LogFormat format, std::string_view event,
                   std::initializer_list<LogField> fields) {
  std::string line;
  if (format == LogFormat::kJson) {
    line += "\"event\":";
    AppendJsonString(line, event);
    for (const LogField& field : fields) {
      line += ',';
      AppendJsonString(line, field.key);
      line += ':';
      AppendValue(line, format, field);
    }
  } else {
    line += event;
    for (const LogField& field : fields) {
      line += ' ';
      line += field.key;
      line += '=';
      AppendValue(line, format, field);
    }
  }
  return line;
}

}  // namespace

void StartLogging(const LoggingOptions& options) {
  StopLogging();
  std::shared_ptr<spdlog::sinks::sink> sink;
  if (options.sink) {
    sink = std::make_shared<FunctionSink>(options.sink);
  } else {
    sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  }
  sink->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      options.format == LogFormat::kJson
          ? "{\"time\":\"%Y-%m-%dT%H:%M:%S.%fZ\",\"level\":\"%l\",%v}"
          : "%Y-%m-%dT%H:%M:%S.%fZ %l %v",
      spdlog::pattern_time_type::utc, "\n"));

  const std::lock_guard<std::mutex> lock(g_mutex);
  Output& output = GlobalOutput();
  output.format = options.format;
  output.thread = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  output.logger = std::make_shared<spdlog::async_logger>(
      "attnd", std::move(sink), output.thread, spdlog::async_overflow_policy::overrun_oldest);
  output.logger->set_level(spdlog::level::trace);
  g_level.store(static_cast<int>(options.level));
}

void StopLogging() {
  Output stopped;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    g_level.store(kOff);
    stopped = std::exchange(GlobalOutput(), Output());
  }
  // The thread writes what waits, then ends. It refers to the logger, which therefore goes last.
  stopped.thread.reset();
}

bool LogEnabled(LogLevel level) {
  return static_cast<int>(level) >= g_level.load(std::memory_order_relaxed);
}

void Log(LogLevel level, std::string_view event, std::initializer_list<LogField> fields) {
  if (!LogEnabled(level)) {
    return;
  }
  std::shared_ptr<spdlog::async_logger> logger;
  std::shared_ptr<spdlog::details::thread_pool> thread;
  LogFormat format = LogFormat::kText;
  {
    const std::lock_guard<std::mutex> lock(g_mutex);
    logger = GlobalOutput().logger;
    thread = GlobalOutput().thread;
    format = GlobalOutput().format;
  }
  if (logger) {
    const std::string line = Render(format, event, fields);
    logger->log(SpdlogLevel(level), spdlog::string_view_t(line.data(), line.size()));
  }
}

}  // namespace attnd::server
