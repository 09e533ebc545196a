// Errors as a server sends them.
#ifndef ATTND_TESTS_CLIENT_FAKE_ERROR_H_
#define ATTND_TESTS_CLIENT_FAKE_ERROR_H_

#include <map>
#include <string>

#include "grpcpp/support/status.h"

namespace attnd::client {

// A gRPC status with an ErrorInfo, and a RetryInfo if `retry_milliseconds` is not negative.
grpc::Status FakeError(grpc::StatusCode code, const std::string& reason, const std::string& message,
                       const std::map<std::string, std::string>& metadata = {},
                       int retry_milliseconds = -1);

}  // namespace attnd::client

#endif  // ATTND_TESTS_CLIENT_FAKE_ERROR_H_
