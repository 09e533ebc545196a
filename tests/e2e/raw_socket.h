// A TCP connection that says what a test wants it to say, for clients that do not keep to HTTP/2
// and for reading the HTTP port. For one thread.
#ifndef ATTND_TESTS_E2E_RAW_SOCKET_H_
#define ATTND_TESTS_E2E_RAW_SOCKET_H_

#include <string>

namespace attnd::e2e {

class RawSocket {
 public:
  // Connects to HOST:PORT of the loopback; connected() tells whether that worked.
  explicit RawSocket(const std::string& address);
  ~RawSocket();
  RawSocket(RawSocket&& other) noexcept;
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  bool connected() const { return connected_; }
  bool Send(const std::string& bytes) const;
  void HalfClose() const;
  // All until the peer closes, or until nothing has come for five seconds.
  std::string ReceiveAll() const;

 private:
  int socket_ = -1;
  bool connected_ = false;
};

// The answer of an HTTP server, head and body.
std::string HttpGet(const std::string& address, const std::string& path);

}  // namespace attnd::e2e

#endif  // ATTND_TESTS_E2E_RAW_SOCKET_H_
