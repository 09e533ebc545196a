// One HTTP GET, enough to read a metrics page.
//
// Plain HTTP/1.0 without redirects, so that the answer ends with the connection. Blocking;
// thread-safe.
#ifndef ATTND_CLIENT_METRICS_HTTP_GET_H_
#define ATTND_CLIENT_METRICS_HTTP_GET_H_

#include <chrono>
#include <string>

#include "absl/status/statusor.h"

namespace attnd::client {

// The body of http://`host_port``path`. UNAVAILABLE if the server cannot be reached or does not
// answer in time, NOT_FOUND for another status than 200, RESOURCE_EXHAUSTED for an answer over 64
// MiB.
absl::StatusOr<std::string> HttpGet(const std::string& host_port, const std::string& path,
                                    std::chrono::seconds timeout = std::chrono::seconds(10));

}  // namespace attnd::client

#endif  // ATTND_CLIENT_METRICS_HTTP_GET_H_
