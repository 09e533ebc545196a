#include "server/http_endpoint.h"

#include <civetweb.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "server/address.h"
#include "server/readiness.h"

namespace attnd::server {
namespace {

struct Reply {
  int status = 200;
  const char* phrase = "OK";
  const char* type = "text/plain; charset=utf-8";
  std::string body;
};

Reply ReadyReply(Readiness::State state) {
  switch (state) {
    case Readiness::State::kReady:
      return {.body = "ok\n"};
    case Readiness::State::kStarting:
      return {.status = 503, .phrase = "Service Unavailable", .body = "starting\n"};
    case Readiness::State::kDraining:
      break;
  }
  return {.status = 503, .phrase = "Service Unavailable", .body = "shutting down\n"};
}

// The library's own error texts name the function that failed and the system's message.
struct StartErrors {
  std::mutex mutex;
  std::string first;  // guarded by mutex
};

}  // namespace

struct HttpEndpoint::Impl {
  ~Impl() {
    if (context != nullptr) {
      Stop();
    }
    mg_exit_library();
  }

  void Stop();

  Reply Answer(const mg_request_info& request) const;
  static int OnRequest(mg_connection* connection);
  static int OnMessage(const mg_connection* connection, const char* message);

  std::function<std::string()> metrics;
  const Readiness* readiness = nullptr;
  StartErrors errors;
  mg_context* context = nullptr;
  std::string host;
  int port = 0;
  std::string address;
};

// The library looks for its stop sign only when a connection arrives or 2 seconds have passed, so
// one is made: a stop then takes some 20 ms.
void HttpEndpoint::Impl::Stop() {
  std::atomic<bool> stopped{false};
  std::thread stopper([this, &stopped] {
    mg_stop(context);
    stopped.store(true);
  });
  const bool bracketed = host.front() == '[';
  const std::string peer = bracketed ? host.substr(1, host.size() - 2) : host;
  while (!stopped.load()) {
    std::array<char, 128> error{};
    if (mg_connection* const knock =
            mg_connect_client(peer.c_str(), port, 0, error.data(), error.size());
        knock != nullptr) {
      mg_close_connection(knock);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  stopper.join();
}

Reply HttpEndpoint::Impl::Answer(const mg_request_info& request) const {
  const std::string_view method = request.request_method;
  const std::string_view path = request.local_uri != nullptr ? request.local_uri : "";
  if (method != "GET" && method != "HEAD") {
    return {.status = 405, .phrase = "Method Not Allowed", .body = "only GET and HEAD\n"};
  }
  if (path == "/metrics") {
    return {.type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics()};
  }
  if (path == "/livez") {
    return {.body = "ok\n"};
  }
  if (path == "/readyz") {
    return ReadyReply(readiness->Get());
  }
  return {.status = 404, .phrase = "Not Found", .body = "try /metrics, /livez or /readyz\n"};
}

// Every request is answered here, so that none of the library's own file serving is reachable.
int HttpEndpoint::Impl::OnRequest(mg_connection* connection) {
  const mg_request_info* const request = mg_get_request_info(connection);
  const auto* const impl = static_cast<const Impl*>(request->user_data);
  const Reply reply = impl->Answer(*request);
  std::string text =
      absl::StrCat("HTTP/1.1 ", reply.status, " ", reply.phrase, "\r\nContent-Type: ", reply.type,
                   "\r\nContent-Length: ", reply.body.size(), "\r\nCache-Control: no-store",
                   "\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n");
  if (std::string_view(request->request_method) != "HEAD") {
    text += reply.body;
  }
  // Before answering, since it also keeps the library from reading the rest of a body, which a
  // client may send one byte at a time for ever.
  mg_disable_keep_alive(connection);
  mg_write(connection, text.data(), text.size());
  return reply.status;
}

int HttpEndpoint::Impl::OnMessage(const mg_connection* connection, const char* message) {
  auto* const impl = static_cast<Impl*>(mg_get_user_data(mg_get_context(connection)));
  if (impl != nullptr) {
    const std::lock_guard<std::mutex> lock(impl->errors.mutex);
    if (impl->errors.first.empty()) {
      impl->errors.first = message;
    }
  }
  return 1;  // not to be logged: what comes later is the doing of clients
}

HttpEndpoint::HttpEndpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpEndpoint::~HttpEndpoint() = default;

const std::string& HttpEndpoint::address() const { return impl_->address; }

absl::StatusOr<std::unique_ptr<HttpEndpoint>> HttpEndpoint::Start(
    const std::string& address, std::function<std::string()> metrics, const Readiness& readiness) {
  const absl::StatusOr<Address> parsed = ParseAddress(address);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("HTTP address ", address, ": ", std::string(parsed.status().message())));
  }
  mg_init_library(MG_FEATURES_DEFAULT);
  auto impl = std::make_unique<Impl>();
  impl->metrics = std::move(metrics);
  impl->readiness = &readiness;
  impl->host = parsed->host;

  mg_callbacks callbacks{};
  callbacks.begin_request = &Impl::OnRequest;
  callbacks.log_message = &Impl::OnMessage;
  // clang-format off
  std::array<const char*, 15> settings = {
      "listening_ports", address.c_str(),
      "num_threads", "4",
      "connection_queue", "64",
      "request_timeout_ms", "2000",
      "max_request_size", "16384",
      "enable_keep_alive", "no",
      "enable_directory_listing", "no",
      nullptr};
  // clang-format on
  impl->context = mg_start(&callbacks, impl.get(), settings.data());
  if (impl->context == nullptr) {
    const std::lock_guard<std::mutex> lock(impl->errors.mutex);
    return absl::UnavailableError(
        absl::StrCat("HTTP port ", address, " cannot be opened: ", impl->errors.first));
  }
  std::array<mg_server_port, 4> ports{};
  if (mg_get_server_ports(impl->context, static_cast<int>(ports.size()), ports.data()) < 1) {
    return absl::InternalError(absl::StrCat("HTTP port ", address, ": the bound port is unknown"));
  }
  impl->port = ports[0].port;
  impl->address = absl::StrCat(impl->host, ":", impl->port);
  return std::unique_ptr<HttpEndpoint>(new HttpEndpoint(std::move(impl)));
}

}  // namespace attnd::server
