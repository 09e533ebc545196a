#include "tests/e2e/raw_socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace attnd::e2e {

RawSocket::RawSocket(const std::string& address) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  const timeval timeout = {.tv_sec = 5, .tv_usec = 0};
  setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  connected_ = connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0;
}

RawSocket::RawSocket(RawSocket&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_) {}

RawSocket::~RawSocket() {
  if (socket_ >= 0) close(socket_);
}

bool RawSocket::Send(const std::string& bytes) const {
  return send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

void RawSocket::HalfClose() const { shutdown(socket_, SHUT_WR); }

std::string RawSocket::ReceiveAll() const {
  std::string all;
  char buffer[4096];
  while (true) {
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    if (n <= 0) return all;
    all.append(buffer, static_cast<std::size_t>(n));
  }
}

std::string HttpGet(const std::string& address, const std::string& path) {
  const RawSocket socket(address);
  socket.Send("GET " + path + " HTTP/1.0\r\nConnection: close\r\n\r\n");
  return socket.ReceiveAll();
}

}  // namespace attnd::e2e
