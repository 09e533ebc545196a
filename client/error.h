// Errors of the service as absl::Status.
//
// The conversions keep code and one-line message and attach the google.rpc details (ErrorInfo,
// RetryInfo, ...) as payloads under their type URL, so that a status can be passed on without
// losing what a program needs to decide. All functions are pure and thread-safe.
#ifndef ATTND_CLIENT_ERROR_H_
#define ATTND_CLIENT_ERROR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/status.h"

namespace attnd::client {

// The status of a call.
absl::Status FromGrpc(const grpc::Status& status);

// The status inside a message of a Stream. Absent (default) is OK.
absl::Status FromRpc(const google::rpc::Status& status);

// The name of the ErrorReason, such as "WRONG_POSITION"; empty if the status carries none.
std::string ErrorReasonOf(const absl::Status& status);

// The metadata of the ErrorInfo; empty if the status carries none.
std::map<std::string, std::string> ErrorMetadataOf(const absl::Status& status);

// A metadata entry as a number; nullopt if it is absent or no number.
std::optional<std::int64_t> ErrorNumberOf(const absl::Status& status, const std::string& key);

// How long the server asks to wait before a retry; nullopt if it does not say.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

// The same status with another message; payloads are kept.
absl::Status WithMessage(const absl::Status& status, const std::string& message);

// What the caller can do about the error, one short clause without a full stop; empty if nothing
// better than the message is known.
std::string AdviceFor(const absl::Status& status);

}  // namespace attnd::client

#endif  // ATTND_CLIENT_ERROR_H_
