// Failures as clients see them: a gRPC code, a one-line message that names field, value and limit,
// and a google.rpc.ErrorInfo with a reason of the contract.
//
// Inside the server a failure is an absl::Status that carries the ErrorInfo (and RetryInfo) as
// payloads; it becomes a grpc::Status or a google.rpc.Status at the border. Thread-safe: pure
// functions.
#ifndef ATTND_SERVER_ERROR_H_
#define ATTND_SERVER_ERROR_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "attnd/v1/attention.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace attnd::server {

using ErrorMetadata = std::vector<std::pair<std::string, std::string>>;

// A failure with the code that the contract gives the reason.
absl::Status Error(v1::ErrorReason reason, const std::string& message,
                   const ErrorMetadata& metadata = {});

// A refusal for a limit that may pass: Error() with google.rpc.RetryInfo.
absl::Status RetryableError(v1::ErrorReason reason, const std::string& message,
                            absl::Duration retry_delay, const ErrorMetadata& metadata = {});

// STATE_BYTES for memory that the machine does not have; it may pass, as sessions end.
absl::Status OutOfMemory(const std::string& message);

// An engine's failure: RESOURCE_EXHAUSTED is a lack of memory, INVALID_ARGUMENT is a number that is
// not finite, OUT_OF_RANGE one that leaves the range of f32 in the engine's sums; anything else is
// an internal error.
absl::Status EngineError(const absl::Status& status);

// The reason a status carries; ERROR_REASON_UNSPECIFIED where it carries none.
v1::ErrorReason ReasonOf(const absl::Status& status);

grpc::Status ToGrpcStatus(const absl::Status& status);
google::rpc::Status ToRpcStatus(const absl::Status& status);

}  // namespace attnd::server

#endif  // ATTND_SERVER_ERROR_H_
