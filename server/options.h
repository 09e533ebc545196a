// What an operator can set, and how it is read.
//
// Each option is an Abseil flag. Where one is given more than once, the command line goes before
// the environment (ATTND_MAX_SESSIONS for --max_sessions), the environment before flag files
// (--flagfile, one option a line), and those before the default.
//
// A plain `Options{}` holds the defaults and suits tests once ResolveAutomatic has filled in what
// depends on the machine. ParseOptions is not thread-safe: call it in main before threads start.
#ifndef ATTND_SERVER_OPTIONS_H_
#define ATTND_SERVER_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/cpu_quota.h"
#include "server/logging.h"
#include "server/store/log_writer.h"

namespace attnd::server {

struct Options {
  // Listening. HOST:PORT; port 0 takes a free one.
  std::string listen = "127.0.0.1:50051";
  std::string http_listen = "127.0.0.1:9090";  // empty: none
  std::string ready_file;                      // empty: none
  bool reflection = true;

  // Computing.
  int workers = 0;  // 0: UsableCpus()
  std::string isa = "native";

  // Log.
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;

  // Limits of messages.
  std::int64_t max_message_bytes = std::int64_t{8} << 20;
  std::int64_t max_response_bytes = std::int64_t{8} << 20;
  std::int64_t max_inflight_bytes = std::int64_t{256} << 20;
  std::int64_t max_queued_requests = 4096;
  int max_stream_messages = 64;
  std::int64_t max_stream_bytes = std::int64_t{16} << 20;
  absl::Duration slow_reader_timeout = absl::Seconds(30);

  // Limits of sessions.
  std::int64_t max_sessions = 10'000;
  std::int64_t max_state_bytes = 0;  // 0: 75 % of MemoryLimit()
  int max_layers = 256;
  int max_heads = 16'384;
  int max_head_dim = 1024;

  // Life of sessions.
  absl::Duration default_time_to_live = absl::Hours(1);
  absl::Duration max_time_to_live = absl::Hours(24 * 7);
  std::int64_t max_tombstones = 100'000;
  absl::Duration tombstone_retention = absl::Hours(24);

  // Durability.
  std::string data_dir;
  FsyncPolicy fsync = FsyncPolicy::kAlways;
  absl::Duration fsync_interval = absl::Seconds(1);
  absl::Duration checkpoint_interval = absl::Seconds(10);

  // Learned feature maps.
  std::int64_t max_feature_map_bytes = std::int64_t{256} << 20;
  std::int64_t max_feature_map_size = std::int64_t{32} << 20;
  absl::Duration feature_map_idle_time = absl::Hours(1);
  absl::Duration feature_map_upload_timeout = absl::Minutes(1);

  // Shutdown.
  absl::Duration drain_delay = absl::ZeroDuration();
  absl::Duration drain_deadline = absl::Seconds(20);

  // Connections.
  int max_concurrent_streams = 256;
  absl::Duration keepalive_time = absl::Seconds(60);
  absl::Duration keepalive_timeout = absl::Seconds(20);
  absl::Duration min_ping_interval = absl::Seconds(10);
  absl::Duration max_connection_age = absl::ZeroDuration();  // 0: no limit
  absl::Duration max_connection_age_grace = absl::Minutes(5);
};

// No message may be larger, whatever the options say.
inline constexpr std::int64_t kMaxMessageBytesCap = std::int64_t{64} << 20;

// Replaces the zeros of `workers` and `max_state_bytes` by what the machine allows.
void ResolveAutomatic(Options& options, const SystemRoot& root = {});

struct CommandLine {
  Options options;
  // Not empty: the user asked for help or the version; print this and exit 0.
  std::string text;
};

// An environment variable's value, or null.
using EnvironmentLookup = std::function<const char*(const std::string& name)>;

// Reads, checks and resolves the options. INVALID_ARGUMENT with a one-line message such as
//   --max_sessions is -1; it must be at least 1
// for an unknown option, a value that does not parse or is out of range, a file that cannot be
// read, and values that contradict each other; main prints it after "attnd: " and exits with 2.
absl::StatusOr<CommandLine> ParseOptions(int argc, const char* const* argv);
absl::StatusOr<CommandLine> ParseOptions(int argc, const char* const* argv,
                                         const EnvironmentLookup& environment);

// The options by group, each with its default: for a terminal, and as a Markdown table.
std::string HelpText();
std::string HelpMarkdown();

}  // namespace attnd::server

#endif  // ATTND_SERVER_OPTIONS_H_
