#include "client/attnctl/bench/bench_command.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/attnctl/bench/report.h"
#include "client/attnctl/bench/schedule.h"
#include "client/attnctl/bench/worker.h"

namespace attnd::attnctl {
namespace {

using Workers = std::vector<std::unique_ptr<Worker>>;
using Sessions = std::vector<std::shared_ptr<client::SessionHandle>>;
using Clock = Schedule::Clock;

volatile std::sig_atomic_t interrupted = 0;

absl::Status Check(const BenchCommand& command) {
  if (command.session.key_dim == 0) {
    return absl::InvalidArgumentError("--key-dim is missing; give the size of a key");
  }
  if (command.sessions < 1 || command.concurrency < 1 || command.batch < 1 || command.window < 1) {
    return absl::InvalidArgumentError(
        "--sessions, --concurrency, --batch and --window must be at least 1");
  }
  if (command.tokens < 0 || command.count < 0 || !(command.rate >= 0)) {
    return absl::InvalidArgumentError("--tokens, --count and --rate must not be negative");
  }
  return absl::OkStatus();
}

// "0" means none.
absl::StatusOr<Clock::duration> DurationFlag(const std::string& text, const std::string& flag) {
  if (text == "0") return Clock::duration::zero();
  const auto duration = ParsePositiveDuration(text, flag);
  if (!duration.ok()) return duration.status();
  return absl::ToChronoNanoseconds(*duration);
}

Totals Sum(const Workers& workers) {
  Totals sum;
  for (const auto& worker : workers) sum.Merge(worker->totals());
  return sum;
}

// Runs all workers to the end of the plan and returns the seconds it took.
double RunWorkers(const Workers& workers, const Schedule::Plan& plan, bool progress) {
  const Clock::time_point begin = Clock::now();
  const auto seconds = [begin] {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  Schedule schedule(plan, begin);
  std::atomic<std::size_t> running = workers.size();
  std::vector<std::thread> threads;
  for (const auto& worker : workers) {
    threads.emplace_back([&worker, &schedule, &running] {
      worker->Run(schedule);
      --running;
    });
  }
  Clock::time_point next_line = begin + std::chrono::milliseconds(500);
  while (running > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (interrupted != 0) schedule.Stop();
    if (!progress || Clock::now() < next_line) continue;
    absl::FPrintF(stderr, "\r%s\x1b[K", ProgressLine(Sum(workers), seconds()));
    next_line += std::chrono::milliseconds(500);
  }
  for (std::thread& thread : threads) thread.join();
  if (progress) std::fputs("\r\x1b[K", stderr);
  return seconds();
}

absl::StatusOr<Sessions> MakeSessions(client::Client& client, const BenchCommand& command) {
  SessionFlags flags = command.session;
  if (flags.labels.empty()) flags.labels = {"attnctl=bench"};
  const auto config = ConfigOf(flags);
  if (!config.ok()) return config.status();
  Sessions sessions;
  absl::Status status = absl::OkStatus();
  for (std::int64_t i = 0; status.ok() && i < command.sessions; ++i) {
    auto session = client.CreateSession(*config);
    status = session.status();
    if (!status.ok()) break;
    sessions.push_back(*std::move(session));
    // In pieces: a context of a million tokens need not fit this program's memory.
    constexpr std::int64_t kPiece = 4096;
    const Payload payload = MakePayload(sessions.back()->shape(0),
                                        std::min(kPiece, std::max<std::int64_t>(command.tokens, 1)),
                                        command.seed + static_cast<std::uint64_t>(i));
    for (std::int64_t done = 0; status.ok() && done < command.tokens; done += kPiece) {
      const std::int64_t rows = std::min(kPiece, command.tokens - done);
      status = sessions.back()->Append(payload.tokens(rows)).status();
      if (interrupted != 0) status = absl::CancelledError("interrupted before the test began");
    }
  }
  if (!status.ok()) {
    for (const auto& session : sessions) client.DeleteSession(session->id()).IgnoreError();
    return status;
  }
  return sessions;
}

// Interrupts end the test early; its result is printed and its sessions are deleted all the same.
class InterruptGuard {
 public:
  InterruptGuard() : previous_(std::signal(SIGINT, [](int) { interrupted = 1; })) {}
  ~InterruptGuard() { std::signal(SIGINT, previous_); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  void (*previous_)(int);
};

}  // namespace

absl::Status Run(const Context& context, const BenchCommand& command) {
  if (const absl::Status status = Check(command); !status.ok()) return status;
  const auto duration = DurationFlag(command.duration, "--duration");
  if (!duration.ok()) return duration.status();
  const auto warmup = DurationFlag(command.warmup, "--warmup");
  if (!warmup.ok()) return warmup.status();
  if (*duration == Clock::duration::zero() && command.count == 0) {
    return absl::InvalidArgumentError("the test has no end; give --duration or --count");
  }
  const auto client = context.Connect();
  if (!client.ok()) return client.status();
  const InterruptGuard guard;
  const auto sessions = MakeSessions(**client, command);
  if (!sessions.ok()) return sessions.status();

  Workers workers;
  for (std::int64_t i = 0; i < command.concurrency; ++i) {
    workers.push_back(std::make_unique<Worker>(
        command, (*sessions)[static_cast<std::size_t>(i % command.sessions)],
        command.seed + 1000 + static_cast<std::uint64_t>(i)));
  }
  if (*warmup > Clock::duration::zero()) {
    RunWorkers(workers, {command.rate, 0, *warmup}, /*progress=*/false);
    for (const auto& worker : workers) worker->Reset();
  }
  const double seconds = RunWorkers(workers, {command.rate, command.count, *duration},
                                    !context.json && ::isatty(STDERR_FILENO) != 0);
  const Totals totals = Sum(workers);
  workers.clear();
  for (const auto& session : *sessions) {
    (*client)->DeleteSession(session->id()).IgnoreError();  // expires by itself otherwise
  }

  if (context.json) {
    PrintJson(ReportJson(command, totals, seconds));
  } else {
    std::fputs(ReportText(command, totals, seconds).c_str(), stdout);
  }
  if (totals.latency.count() == 0 && totals.failed > 0) {
    return totals.failures.begin()->second.first;
  }
  return absl::OkStatus();
}

}  // namespace attnd::attnctl
