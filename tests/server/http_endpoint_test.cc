#include "server/http_endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/readiness.h"

namespace attnd::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// A client that sends what it is told and no more.
class RawClient {
 public:
  explicit RawClient(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    const timeval timeout = {.tv_sec = 20, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ =
        connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  ~RawClient() { close(socket_); }

  bool connected() const { return connected_; }
  bool Send(const std::string& bytes) const {
    return send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // Until the server closes.
  std::string Receive() const {
    std::string all;
    char buffer[4096];
    for (;;) {
      const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
      if (n <= 0) {
        return all;
      }
      all.append(buffer, static_cast<std::size_t>(n));
    }
  }

 private:
  int socket_;
  bool connected_ = false;
};

class HttpEndpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Start([] { return std::string("a_metric 1\n"); });
  }

  void Start(std::function<std::string()> metrics) {
    endpoint_.reset();
    auto endpoint = HttpEndpoint::Start("127.0.0.1:0", std::move(metrics), readiness_);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
    ASSERT_THAT(endpoint_->address(), StartsWith("127.0.0.1:"));
    ASSERT_TRUE(absl::SimpleAtoi(endpoint_->address().substr(10), &port_));
  }

  std::string Exchange(const std::string& request) const {
    const RawClient client(port_);
    EXPECT_TRUE(client.connected());
    client.Send(request);
    return client.Receive();
  }
  std::string Get(const std::string& path) const {
    return Exchange("GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n");
  }

  Readiness readiness_;
  std::unique_ptr<HttpEndpoint> endpoint_;
  int port_ = 0;
};

TEST_F(HttpEndpointTest, ServesMetrics) {
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Length: 11\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\na_metric 1\n"));
}

TEST_F(HttpEndpointTest, LivezIsOkInEveryState) {
  for (const auto state :
       {Readiness::State::kStarting, Readiness::State::kReady, Readiness::State::kDraining}) {
    readiness_.Set(state);
    EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 OK\r\n"));
  }
}

TEST_F(HttpEndpointTest, ReadyzFollowsTheServer) {
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(Get("/readyz"), EndsWith("\r\n\r\nstarting\n"));
  readiness_.Set(Readiness::State::kReady);
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(Get("/readyz?verbose=1"), StartsWith("HTTP/1.1 200 OK\r\n"));
  readiness_.Set(Readiness::State::kDraining);
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 Service Unavailable\r\n"));
  EXPECT_THAT(Get("/readyz"), EndsWith("\r\n\r\nshutting down\n"));
}

TEST_F(HttpEndpointTest, NothingElseIsThere) {
  for (const char* path : {"/", "/metrics/", "/metricsx", "/../etc/passwd", "/%2e%2e/etc/passwd"}) {
    EXPECT_THAT(Get(path), Not(HasSubstr(" 200 "))) << path;
  }
  EXPECT_THAT(Get("/index.html"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
}

TEST_F(HttpEndpointTest, HeadHasNoBody) {
  const std::string answer = Exchange("HEAD /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Length: 11\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n"));
}

TEST_F(HttpEndpointTest, OtherMethodsAreRefused) {
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH"}) {
    EXPECT_THAT(Exchange(std::string(method) + " /metrics HTTP/1.1\r\nHost: test\r\n\r\n"),
                StartsWith("HTTP/1.1 405 Method Not Allowed\r\n"))
        << method;
  }
}

TEST_F(HttpEndpointTest, SurvivesGarbage) {
  std::mt19937 random(11);
  std::uniform_int_distribution<int> byte(0, 255);
  for (int round = 0; round < 50; ++round) {
    std::string bytes(200, '\0');
    for (char& c : bytes) {
      c = static_cast<char>(byte(random));
    }
    EXPECT_THAT(Exchange(bytes + "\r\n\r\n"), Not(HasSubstr(" 200 ")));
  }
  EXPECT_THAT(Exchange("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Exchange("GET /" + std::string(1 << 20, 'a') + " HTTP/1.1\r\n\r\n"),
              Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Exchange("GET /livez HTTP/1.1\r\nX: " + std::string(1 << 20, 'a') + "\r\n\r\n"),
              Not(HasSubstr(" 200 ")));
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 OK\r\n"));
}

// Eight clients that say nothing hold all threads for their two seconds and no longer.
TEST_F(HttpEndpointTest, SilentClientsDelayLivezBySecondsOnly) {
  std::vector<std::unique_ptr<RawClient>> silent;
  for (int i = 0; i < 8; ++i) {
    silent.push_back(std::make_unique<RawClient>(port_));
    silent.back()->Send("GET /livez HTTP/1.1\r\n");
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_LT(SecondsSince(start), 10);
}

// The whole head has two seconds, not each of its bytes.
TEST_F(HttpEndpointTest, ADrippingHeadIsCutOff) {
  const RawClient client(port_);
  const auto start = std::chrono::steady_clock::now();
  client.Send("GET /livez HTTP/1.1\r\nX: ");
  while (client.Send("x") && SecondsSince(start) < 15) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LT(SecondsSince(start), 8);
}

// The HTTP library by itself reads on for as long as a body drips in, and each such client holds a
// thread.
TEST_F(HttpEndpointTest, ADrippingBodyIsCutOff) {
  const RawClient client(port_);
  const auto start = std::chrono::steady_clock::now();
  client.Send("POST /livez HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000000000\r\n\r\n");
  while (client.Send("x") && SecondsSince(start) < 15) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LT(SecondsSince(start), 8);
}

TEST_F(HttpEndpointTest, ClientsThatDoNotReadDoNotStopIt) {
  // More than the buffers of both sockets hold.
  Start([] { return std::string(32 << 20, 'x'); });
  std::vector<std::unique_ptr<RawClient>> stuck;
  for (int i = 0; i < 8; ++i) {
    stuck.push_back(std::make_unique<RawClient>(port_));
    stuck.back()->Send("GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n");
  }
  auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(Get("/livez"), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_LT(SecondsSince(start), 15);
  start = std::chrono::steady_clock::now();
  endpoint_.reset();
  EXPECT_LT(SecondsSince(start), 10);
}

TEST_F(HttpEndpointTest, APortInUseIsOneLine) {
  const auto second = HttpEndpoint::Start(
      endpoint_->address(), [] { return std::string(); }, readiness_);
  ASSERT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  const std::string message(second.status().message());
  EXPECT_THAT(message, StartsWith("HTTP port " + endpoint_->address() + " cannot be opened: "));
  EXPECT_THAT(message, HasSubstr("Address already in use"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST_F(HttpEndpointTest, ABadAddressIsRefused) {
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:80,81", "127.0.0.1:0s"}) {
    EXPECT_EQ(HttpEndpoint::Start(
                  address, [] { return std::string(); }, readiness_)
                  .status()
                  .code(),
              absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST_F(HttpEndpointTest, ThePortIsFreeAfterwards) {
  const std::string address = endpoint_->address();
  endpoint_.reset();
  const auto again = HttpEndpoint::Start(
      address, [] { return std::string(); }, readiness_);
  EXPECT_TRUE(again.ok()) << again.status();
}

}  // namespace
}  // namespace attnd::server
