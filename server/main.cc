// attnd: reads the options, starts the server, waits for SIGTERM or SIGINT, drains, exits 0.
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "engine/cpu.h"
#include "engine/gemm.h"
#include "server/clock.h"
#include "server/logging.h"
#include "server/options.h"
#include "server/ready_file.h"
#include "server/runtime.h"
#include "server/server.h"
#include "server/version.h"

namespace attnd::server {
namespace {

constexpr int kUsageError = 2;

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "attnd: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

std::uint64_t RandomNumber() {
  thread_local std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

int Run(int argc, char** argv) {
  absl::StatusOr<CommandLine> command_line = ParseOptions(argc, argv);
  if (!command_line.ok()) return Fail(command_line.status(), kUsageError);
  if (!command_line->text.empty()) {
    std::fputs(command_line->text.c_str(), stdout);
    return EXIT_SUCCESS;
  }
  const Options& options = command_line->options;

  // Before any thread exists, so that all inherit it and only sigwait below sees these signals.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  TuneRuntime();
  absl::Status pinned = engine::PinIsa(options.isa);
  if (!pinned.ok()) return Fail(pinned, kUsageError);

  StartLogging({options.log_format, options.log_level, {}});
  if (!engine::GemmHonoursChain()) {
    Log(LogLevel::kWarning, "bits of an answer may depend on batching on this processor",
        {{"isa", engine::ActiveIsa()}});
  }
  absl::StatusOr<std::unique_ptr<Server>> server =
      Server::Start(options, SystemClock(), RandomNumber);
  if (!server.ok()) {
    StopLogging();
    return Fail(server.status(), EXIT_FAILURE);
  }
  Log(LogLevel::kInfo, "ready",
      {{"version", Version()},
       {"grpc", (*server)->grpc_address()},
       {"http", (*server)->http_address()},
       {"workers", options.workers},
       {"isa", engine::ActiveIsa()}});
  if (!options.ready_file.empty()) {
    absl::Status written =
        WriteReadyFile(options.ready_file, (*server)->grpc_address(), (*server)->http_address());
    if (!written.ok()) return Fail(written, EXIT_FAILURE);
  }

  int signal_number = 0;
  sigwait(&signals, &signal_number);
  // A second signal ends the process at once.
  std::thread impatient([&signals] {
    int again = 0;
    sigwait(&signals, &again);
    _exit(EXIT_FAILURE);
  });
  impatient.detach();
  (*server)->Drain();
  StopLogging();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace attnd::server

int main(int argc, char** argv) { return attnd::server::Run(argc, argv); }
