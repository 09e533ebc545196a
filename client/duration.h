// Durations for the libraries below: any absl::Duration, also an infinite one, becomes a value that
// they can add to the present. Pure functions, thread-safe.
#ifndef ATTND_CLIENT_DURATION_H_
#define ATTND_CLIENT_DURATION_H_

#include <chrono>

#include "absl/time/time.h"
#include "google/protobuf/duration.pb.h"

namespace attnd::client {

// Nanoseconds, at most a year either way: clocks count nanoseconds in 64 bits, and a header of gRPC
// holds a deadline of at most three years.
std::chrono::nanoseconds ToChrono(absl::Duration duration);

// At most 10,000 years either way, the range of google.protobuf.Duration.
google::protobuf::Duration ToProto(absl::Duration duration);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_DURATION_H_
