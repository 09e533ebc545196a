// What a program chooses about its connection to a server.
#ifndef ATTND_CLIENT_OPTIONS_H_
#define ATTND_CLIENT_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "client/clock.h"
#include "client/retry.h"

namespace attnd::client {

struct ClientOptions {
  // HOST:PORT, or any gRPC target.
  std::string target = "127.0.0.1:50051";
  // Deadline of a call, retries included, where the call names none.
  absl::Duration default_timeout = absl::Minutes(2);
  RetryPolicy retry;
  // A server accepts a ping every 10 seconds; half a minute notices a dead peer well before
  // a middlebox forgets the connection.
  absl::Duration keepalive_time = absl::Seconds(30);
  absl::Duration keepalive_timeout = absl::Seconds(10);
  // Largest answer accepted from the server.
  std::int32_t max_receive_bytes = 1 << 30;
  // Large tensors are cut into messages of about this size, and always below the server's limits.
  std::int64_t target_request_bytes = std::int64_t{1} << 20;
  std::int64_t target_response_bytes = std::int64_t{4} << 20;
  // For tests: time and the jitter of the back-off. Null: the real ones.
  std::shared_ptr<Clock> clock;
  std::function<double()> uniform;
};

// What one call chooses.
struct CallOptions {
  // Deadline of the call with all its messages and retries; zero: ClientOptions.default_timeout.
  absl::Duration timeout = absl::ZeroDuration();
};

}  // namespace attnd::client

#endif  // ATTND_CLIENT_OPTIONS_H_
