// The HTTP port for those who run the server:
//   GET /metrics  Prometheus' text format
//   GET /livez    200 while the process works
//   GET /readyz   200, or 503 with a line that says why not
//
// Bounded against clients of all sorts: 4 threads, 16 KiB of request head, 2 seconds for a request
// to arrive and for the answer to leave, one request per connection, no bodies.
//
// Thread-safe. The destructor stops the port and waits for requests under way.
#ifndef ATTND_SERVER_HTTP_ENDPOINT_H_
#define ATTND_SERVER_HTTP_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/readiness.h"

namespace attnd::server {

class HttpEndpoint {
 public:
  // address: HOST:PORT or [IPV6]:PORT; port 0 takes a free one. `metrics` makes the page of
  // /metrics, on a thread of the endpoint; `readiness` must outlive it. UNAVAILABLE with a one-line
  // message when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(const std::string& address,
                                                             std::function<std::string()> metrics,
                                                             const Readiness& readiness);
  HttpEndpoint(const HttpEndpoint&) = delete;
  HttpEndpoint& operator=(const HttpEndpoint&) = delete;
  ~HttpEndpoint();

  // HOST:PORT with the port that was bound.
  const std::string& address() const;

 private:
  struct Impl;
  explicit HttpEndpoint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace attnd::server

#endif  // ATTND_SERVER_HTTP_ENDPOINT_H_
