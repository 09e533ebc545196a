// From gRPC's context of a call to what the server's own code needs of it.
#ifndef ATTND_SERVER_CALL_CONTEXT_H_
#define ATTND_SERVER_CALL_CONTEXT_H_

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>

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

}  // namespace attnd::server

#endif  // ATTND_SERVER_CALL_CONTEXT_H_
