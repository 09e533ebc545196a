#include "client/metrics/http_get.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace attnd::client {
namespace {

constexpr std::size_t kMaxAnswer = std::size_t{64} << 20;

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  Socket& operator=(Socket&&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::Status Unreachable(const std::string& host_port, const char* why) {
  return absl::UnavailableError(absl::StrCat("http://", host_port, ": ", why));
}

absl::StatusOr<Socket> Connect(const std::string& host_port, std::chrono::seconds timeout) {
  const std::size_t colon = host_port.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("'", host_port, "' is not HOST:PORT"));
  }
  std::string host = host_port.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), host_port.c_str() + colon + 1, &hints, &found);
  if (error != 0) return Unreachable(host_port, ::gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, &::freeaddrinfo);

  timeval limit{};
  limit.tv_sec = timeout.count();
  int last_error = 0;
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    Socket socket(::socket(address->ai_family, address->ai_socktype, address->ai_protocol));
    if (socket.fd() >= 0 &&
        ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0 &&
        ::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0 &&
        ::connect(socket.fd(), address->ai_addr, address->ai_addrlen) == 0) {
      return socket;
    }
    last_error = errno;
  }
  return Unreachable(host_port, std::strerror(last_error));
}

absl::Status SendAll(const Socket& socket, const std::string& host_port, const std::string& text) {
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(socket.fd(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Unreachable(host_port, std::strerror(errno));
    sent += static_cast<std::size_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReceiveAll(const Socket& socket, const std::string& host_port) {
  std::string answer;
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t count = ::recv(socket.fd(), buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Unreachable(host_port, std::strerror(errno));
    if (count == 0) return answer;
    answer.append(buffer.data(), static_cast<std::size_t>(count));
    if (answer.size() > kMaxAnswer) {
      return absl::ResourceExhaustedError(
          absl::StrCat("http://", host_port, ": the answer exceeds ", kMaxAnswer, " bytes"));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> HttpGet(const std::string& host_port, const std::string& path,
                                    std::chrono::seconds timeout) {
  const auto socket = Connect(host_port, timeout);
  if (!socket.ok()) return socket.status();
  const absl::Status sent = SendAll(
      *socket, host_port, absl::StrCat("GET ", path, " HTTP/1.0\r\nHost: ", host_port, "\r\n\r\n"));
  if (!sent.ok()) return sent;
  const auto answer = ReceiveAll(*socket, host_port);
  if (!answer.ok()) return answer.status();

  const std::size_t line_end = answer->find("\r\n");
  const std::size_t head_end = answer->find("\r\n\r\n");
  if (answer->rfind("HTTP/1.", 0) != 0 || head_end == std::string::npos) {
    return Unreachable(host_port, "the answer is not HTTP");
  }
  const std::string status_line = answer->substr(0, line_end);
  if (status_line.find(" 200") != std::string("HTTP/1.x").size()) {
    return absl::NotFoundError(absl::StrCat("http://", host_port, path, ": ", status_line));
  }
  return answer->substr(head_end + 4);
}

}  // namespace attnd::client
