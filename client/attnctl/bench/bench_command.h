// attnctl bench: a load generator.
#ifndef ATTND_CLIENT_ATTNCTL_BENCH_BENCH_COMMAND_H_
#define ATTND_CLIENT_ATTNCTL_BENCH_BENCH_COMMAND_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "client/attnctl/context.h"
#include "client/attnctl/session_flags.h"

namespace attnd::attnctl {

struct BenchCommand {
  SessionFlags session;
  std::int64_t sessions = 4;
  // Workers; worker w uses session w mod sessions.
  std::int64_t concurrency = 4;
  // Tokens in each session before the test begins.
  std::int64_t tokens = 4096;
  // Tokens or queries of one call.
  std::int64_t batch = 1;
  std::string call = "attend";
  std::string transport = "unary";
  // Unanswered messages of each worker's stream.
  std::int32_t window = 1;
  // Calls per second over all workers; 0: closed loop.
  double rate = 0;
  // "0" for none; a test has at least one bound.
  std::string duration = "10s";
  std::int64_t count = 0;
  // Before the test, not counted.
  std::string warmup = "1s";
  std::uint64_t seed = 1;
};

// Makes sessions, runs the test, prints the result and deletes the sessions, also when it is
// interrupted (SIGINT). Fails if no call succeeded.
absl::Status Run(const Context& context, const BenchCommand& command);

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_BENCH_BENCH_COMMAND_H_
