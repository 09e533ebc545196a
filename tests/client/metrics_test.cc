#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>

#include "client/metrics/http_get.h"
#include "client/metrics/prometheus_text.h"

namespace attnd::client {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(PrometheusText, ReadsSamplesLabelsEscapesAndTimestamps) {
  const auto samples = ParsePrometheusText(
      "# HELP a_total text with { and \"\n"
      "# TYPE a_total counter\n"
      "\n"
      "a_total 3\n"
      "b{x=\"1\",y=\"q\\\"\\\\\\n}\"} -2.5e-3 1700000000000\r\n"
      "  c { x = \"1\" , } +Inf\n"
      "d{} NaN");
  ASSERT_TRUE(samples.ok()) << samples.status();
  ASSERT_EQ(samples->size(), 4U);
  EXPECT_EQ((*samples)[0].name, "a_total");
  EXPECT_EQ((*samples)[0].value, 3);
  EXPECT_EQ((*samples)[1].labels.at("y"), "q\"\\\n}");
  EXPECT_EQ((*samples)[1].value, -2.5e-3);
  EXPECT_EQ((*samples)[2].labels.at("x"), "1");
  EXPECT_EQ((*samples)[2].value, kInfinity);
  EXPECT_TRUE(std::isnan((*samples)[3].value));
  EXPECT_TRUE(ParsePrometheusText("")->empty());
}

TEST(PrometheusText, NamesTheMalformedLine) {
  for (const char* line : {"a", "a{x=\"1\"", "a{x=1} 2", "a{x=\"1} 2", "a{=\"1\"} 2", "{} 2",
                           "a two", "a 1 2 3", "a{x=\"1\" y=\"2\"} 3", "a{x=\"\\"}) {
    const auto samples = ParsePrometheusText(std::string("ok 1\n") + line);
    EXPECT_EQ(samples.status().message(), "metrics page: line 2 is malformed") << line;
  }
}

TEST(PrometheusText, SumsTheSeriesOfAHistogram) {
  const auto samples = ParsePrometheusText(
      "h_bucket{call=\"attend\",transport=\"unary\",le=\"0.1\"} 1\n"
      "h_bucket{call=\"attend\",transport=\"unary\",le=\"+Inf\"} 2\n"
      "h_bucket{call=\"attend\",transport=\"stream\",le=\"0.1\"} 10\n"
      "h_bucket{call=\"attend\",transport=\"stream\",le=\"+Inf\"} 20\n"
      "h_bucket{call=\"step\",transport=\"unary\",le=\"0.1\"} 100\n"
      "h_count{call=\"attend\"} 7\n");
  const CumulativeBuckets both = HistogramOf(*samples, "h", {{"call", "attend"}});
  EXPECT_EQ(both, (CumulativeBuckets{{0.1, 11}, {kInfinity, 22}}));
  EXPECT_EQ(Count(both), 22);
  const CumulativeBuckets later = {{0.1, 12}, {kInfinity, 30}};
  EXPECT_EQ(Since(both, later), (CumulativeBuckets{{0.1, 1}, {kInfinity, 8}}));
  EXPECT_TRUE(HistogramOf(*samples, "absent", {}).empty());
}

TEST(PrometheusText, QuantilesInterpolateInsideTheirBucket) {
  const CumulativeBuckets buckets = {{1, 10}, {2, 10}, {4, 30}, {kInfinity, 40}};
  EXPECT_DOUBLE_EQ(Quantile(buckets, 0.125), 0.5);
  EXPECT_DOUBLE_EQ(Quantile(buckets, 0.25), 1.0);
  EXPECT_DOUBLE_EQ(Quantile(buckets, 0.5), 3.0);
  EXPECT_DOUBLE_EQ(Quantile(buckets, 0.75), 4.0);
  EXPECT_DOUBLE_EQ(Quantile(buckets, 0.99), 4.0);
  EXPECT_TRUE(std::isnan(Quantile({}, 0.5)));
  EXPECT_TRUE(std::isnan(Quantile({{1, 0}, {kInfinity, 0}}, 0.5)));
}

// Answers one connection with `answer`, byte for byte.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer) {
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_, generic, size), 0);
    EXPECT_EQ(::listen(listener_, 1), 0);
    EXPECT_EQ(::getsockname(listener_, generic, &size), 0);
    target_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this, answer = std::move(answer)] {
      const int peer = ::accept(listener_, nullptr, nullptr);
      while (request_.find("\r\n\r\n") == std::string::npos) {
        char byte = 0;
        if (::recv(peer, &byte, 1, 0) != 1) break;
        request_ += byte;
      }
      EXPECT_EQ(::send(peer, answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
      ::close(peer);
    });
  }
  ~OneAnswer() {
    thread_.join();
    ::close(listener_);
  }
  const std::string& target() const { return target_; }
  // Once the answer was read.
  std::string request_;

 private:
  int listener_ = -1;
  std::string target_;
  std::thread thread_;
};

TEST(HttpGet, ReadsABody) {
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\na 1\n\r\n\r\nb 2\n");
  const auto body = HttpGet(server.target(), "/metrics");
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, "a 1\n\r\n\r\nb 2\n");
  EXPECT_EQ(server.request_, "GET /metrics HTTP/1.0\r\nHost: " + server.target() + "\r\n\r\n");
}

TEST(HttpGet, OtherStatusAndOtherProtocolsAreErrors) {
  {
    OneAnswer server("HTTP/1.1 404 Not Found\r\nX: 200\r\n\r\nno 200 here");
    EXPECT_EQ(HttpGet(server.target(), "/x").status().code(), absl::StatusCode::kNotFound);
  }
  {
    OneAnswer server("220 mail.example.org ESMTP\r\n");
    EXPECT_EQ(HttpGet(server.target(), "/x").status().code(), absl::StatusCode::kUnavailable);
  }
  {
    OneAnswer server("");
    EXPECT_EQ(HttpGet(server.target(), "/x").status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST(HttpGet, UnreachableAndMalformedTargets) {
  EXPECT_EQ(HttpGet("127.0.0.1:1", "/").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(HttpGet("nonsense", "/").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace attnd::client
