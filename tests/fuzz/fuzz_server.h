// The server's own code without gRPC, small and on one worker, for programs that feed it bytes.
#ifndef ATTND_TESTS_FUZZ_FUZZ_SERVER_H_
#define ATTND_TESTS_FUZZ_FUZZ_SERVER_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "server/admission.h"
#include "server/call_registry.h"
#include "server/clock.h"
#include "server/failure_log.h"
#include "server/logging.h"
#include "server/message_handler.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/scheduler.h"
#include "server/server_info.h"
#include "server/session_directory.h"
#include "server/session_table.h"

namespace attnd::server {

struct FuzzServer {
  FuzzServer() { StartLogging({LogFormat::kText, LogLevel::kError, {}}); }

  static Options MakeOptions() {
    Options options;
    options.max_state_bytes = 64 << 20;
    options.max_layers = 16;
    options.max_heads = 64;
    options.max_head_dim = 64;
    return options;
  }

  const Options options = MakeOptions();
  Metrics metrics{MakeBuildInfo()};
  FailureLog failures{SystemClock()};
  Admission admission{options.max_queued_requests, options.max_inflight_bytes};
  Admission waits{options.max_queued_requests, options.max_inflight_bytes};
  CallRegistry calls;
  StateBudget budget{options.max_state_bytes};
  Scheduler scheduler{1, SystemClock()};
  std::uint64_t random = 0;
  SessionTable sessions{options, SystemClock(), scheduler,
                        budget,  metrics,       [this] { return ++random; }};
  CallServices services{options, SystemClock(), metrics, admission, waits, budget, calls};
  SessionDirectory directory{sessions, nullptr, nullptr, SystemClock()};
  MessageHandler messages{services, directory, sessions, failures};
};

inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "does not hold: " << what << '\n';
  std::abort();
}

}  // namespace attnd::server

#endif  // ATTND_TESTS_FUZZ_FUZZ_SERVER_H_
