// Load on a server and its latencies: one thread that keeps a number of unary calls outstanding on
// one connection. A single thread leaves most of a small machine to the server.
//
// For one thread. A call that fails ends the process with its message.
#ifndef ATTND_TESTS_BENCH_LOAD_CLIENT_H_
#define ATTND_TESTS_BENCH_LOAD_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace attnd::bench {

// Seconds of each call. `percent` of them are not longer than the result.
double Percentile(std::vector<double> seconds, double percent);

class LoadClient {
 public:
  // Connects to HOST:PORT over a connection of its own.
  explicit LoadClient(const std::string& address);
  LoadClient(const LoadClient&) = delete;
  LoadClient& operator=(const LoadClient&) = delete;

  v1::Session Create(const v1::CreateSessionRequest& request);
  void Delete(const std::string& session_id);

  // Makes `calls` calls, `concurrency` of them at any time, and returns how long each took.
  std::vector<double> Attend(const v1::AttendRequest& request, int concurrency, int calls);

  // Makes `calls` calls one after the other; each stands where the last one ended.
  std::vector<double> Append(v1::AppendRequest& request, int calls);

  // Makes calls one after the other until `stop`, which is then waited for no longer than a call
  // takes to be cancelled. Returns how many ended by themselves.
  int AttendUntil(const v1::AttendRequest& request, const std::function<bool()>& stop);

 private:
  std::unique_ptr<v1::AttentionService::Stub> stub_;
  grpc::CompletionQueue queue_;
};

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_LOAD_CLIENT_H_
