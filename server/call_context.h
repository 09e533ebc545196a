// From gRPC's context of a call to what the server's own code needs of it.
#ifndef ATTND_SERVER_CALL_CONTEXT_H_
#define ATTND_SERVER_CALL_CONTEXT_H_

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>

#include "grpc/grpc.h"
#include "grpcpp/server_context.h"
#include "server/call.h"

namespace attnd::server {

// The call's deadline on the monotonic clock; INT64_MAX where it has none.
inline std::int64_t DeadlineNanos(const grpc::CallbackServerContext& context,
                                  std::int64_t now_nanos) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return std::numeric_limits<std::int64_t>::max();
  }
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      deadline - std::chrono::system_clock::now());
  std::int64_t nanos = 0;
  return __builtin_add_overflow(now_nanos, left.count(), &nanos)
             ? std::numeric_limits<std::int64_t>::max()
             : nanos;
}

// gRPC's call, held so that it can be cancelled after its context has gone: gRPC deletes the
// context once the reactor's OnDone() has returned, whoever else may be about to cancel the call.
class HeldCall {
 public:
  HeldCall() = default;
  explicit HeldCall(grpc::CallbackServerContext& context) : call_(context.c_call()) {
    grpc_call_ref(call_.get());
  }

  void Cancel() const {
    grpc_call_cancel_with_status(call_.get(), GRPC_STATUS_CANCELLED,
                                 "the peer does not read its answer", nullptr);
  }

 private:
  struct Unref {
    void operator()(grpc_call* call) const { grpc_call_unref(call); }
  };
  std::unique_ptr<grpc_call, Unref> call_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_CALL_CONTEXT_H_
