// The connection under Client, SessionHandle and Stream: channel, stub, deadlines and retries.
//
// Thread-safe. Shared by everything that was made from one Client; the connection closes with the
// last of them.
#ifndef ATTND_CLIENT_TRANSPORT_H_
#define ATTND_CLIENT_TRANSPORT_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.grpc.pb.h"
#include "client/duration.h"
#include "client/error.h"
#include "client/mutex.h"
#include "client/options.h"
#include "client/retry.h"
#include "grpcpp/client_context.h"

namespace attnd::client {

class Transport {
 public:
  using Stub = v1::AttentionService::StubInterface;

  // Makes a channel; connects on first use.
  explicit Transport(ClientOptions options);

  // The deadline of a call that begins now.
  absl::Time DeadlineFor(const CallOptions& call) const;
  // Time left until `deadline`, on the clock that waiting threads use.
  std::chrono::steady_clock::time_point WaitDeadline(absl::Time deadline) const;

  // A unary call with retries. `session_id` becomes the metadata by which proxies route; empty:
  // none.
  template <class Request, class Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const std::string& session_id, const Request& request, Response* response,
                    absl::Time deadline) {
    return Call(method, session_id, request, response, deadline, options_.retry);
  }
  // The same with other retries than ClientOptions.retry.
  template <class Request, class Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const std::string& session_id, const Request& request, Response* response,
                    absl::Time deadline, const RetryPolicy& retry) {
    return Attempt(session_id, deadline, retry, [&](grpc::ClientContext& context) {
      response->Clear();
      return (stub_.get()->*method)(&context, request, response);
    });
  }

  // Any call that can be repeated: `call` makes one attempt with a context of its own and returns
  // its grpc::Status.
  template <class MakeCall>
  absl::Status Attempt(const std::string& session_id, absl::Time deadline, const RetryPolicy& retry,
                       const MakeCall& call) {
    return RunWithRetries(
        retry, deadline, *options_.clock, options_.uniform,
        [&](absl::Duration timeout) -> absl::Status {
          grpc::ClientContext context;
          Prepare(session_id, &context);
          context.set_deadline(std::chrono::system_clock::now() + ToChrono(timeout));
          return FromGrpc(call(context));
        });
  }

  // Adds the session's metadata.
  void Prepare(const std::string& session_id, grpc::ClientContext* context) const;

  // The server's facts, asked once.
  absl::StatusOr<v1::ServerInfo> Info(absl::Time deadline);

  Stub& stub() { return *stub_; }
  const ClientOptions& options() const { return options_; }

 private:
  ClientOptions options_;
  std::unique_ptr<Stub> stub_;
  Mutex info_mutex_;
  std::unique_ptr<const v1::ServerInfo> info_ ABSL_GUARDED_BY(info_mutex_);
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_TRANSPORT_H_
