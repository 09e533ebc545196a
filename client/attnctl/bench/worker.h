// One worker of a load test: calls on one session, one after the other or through a stream.
//
// Run() is used from one thread; Totals() from any.
#ifndef ATTND_CLIENT_ATTNCTL_BENCH_WORKER_H_
#define ATTND_CLIENT_ATTNCTL_BENCH_WORKER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/attnctl/bench/bench_command.h"
#include "client/attnctl/bench/latency_histogram.h"
#include "client/attnctl/bench/schedule.h"
#include "client/mutex.h"
#include "client/session.h"

namespace attnd::attnctl {

// Random rows of one call: unit-variance keys and queries, as the engines expect them.
struct Payload {
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> queries;
  std::vector<float> log_decays;  // as sigmoids give them, about -0.07 each
  std::vector<float> rates;       // about 1/2
  std::int64_t rows = 0;
  client::LayerShape shape;

  // The first `count` rows; all of them by default.
  client::LayerTokens tokens() const { return tokens(rows); }
  client::LayerTokens tokens(std::int64_t count) const;
  client::ConstTensor query_tensor() const;
};

Payload MakePayload(const client::LayerShape& shape, std::int64_t rows, std::uint64_t seed);

struct Totals {
  LatencyHistogram latency;
  // Failed calls by code and reason, and the first message of each.
  struct Failure {
    std::int64_t count = 0;
    absl::Status first;
  };
  std::map<std::string, Failure> failures;
  std::int64_t failed = 0;

  void Merge(const Totals& other);
};

class Worker {
 public:
  Worker(const BenchCommand& command, std::shared_ptr<client::SessionHandle> session,
         std::uint64_t seed);

  // Calls until the schedule ends; a failed call is counted and the next one made.
  void Run(Schedule& schedule);

  Totals totals() const;
  // Forgets what was counted.
  void Reset();

 private:
  void RunUnary(Schedule& schedule);
  void RunStream(Schedule& schedule);
  absl::Status CallUnary();
  absl::Status SendOnStream(client::Stream& stream, std::function<void(const absl::Status&)> done);
  void Count(Schedule::Clock::time_point begin, const absl::Status& status);
  // When to begin the call that was meant for `intended`.
  Schedule::Clock::time_point WaitFor(Schedule::Clock::time_point intended) const;

  const BenchCommand& command_;
  const std::shared_ptr<client::SessionHandle> session_;
  const Payload payload_;

  mutable client::Mutex mutex_;
  Totals totals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attnd::attnctl

#endif  // ATTND_CLIENT_ATTNCTL_BENCH_WORKER_H_
