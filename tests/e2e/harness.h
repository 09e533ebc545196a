// A server in this process on a free loopback port, and a raw client of it: stubs and messages as
// the contract has them, without the client library and its retries.
//
// One test at a time owns a TestServer; its stub may be used from any thread.
#ifndef ATTND_TESTS_E2E_HARNESS_H_
#define ATTND_TESTS_E2E_HARNESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/clock.h"
#include "server/options.h"
#include "server/server.h"
#include "tests/oracle/relative_error.h"

namespace attnd::e2e {

// Fewer rounds where a sanitizer makes each of them slow.
constexpr int Rounds(int rounds) {
#ifdef ATTND_SANITIZED
  return (rounds + 3) / 4;
#else
  return rounds;
#endif
}

// Free ports, two workers, 1 GiB of state, no HTTP.
server::Options TestOptions();

class TestServer {
 public:
  explicit TestServer(const server::Options& options = TestOptions(),
                      const server::Clock& clock = server::SystemClock());
  ~TestServer();
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  v1::AttentionService::Stub& stub() { return *stub_; }
  server::Server& server() { return *server_; }
  const std::string& address() const { return server_->grpc_address(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // A connection of its own, which shares nothing with other channels.
  std::shared_ptr<grpc::Channel> NewChannel(grpc::ChannelArguments args = {}) const;

  // The value of a metric by its text in the exposition, labels included; -1 where it is missing.
  // Needs http_listen.
  double Metric(const std::string& name) const;
  // Waits until a metric has a value; false after ten seconds.
  bool WaitForMetric(const std::string& name, double value) const;

 private:
  std::unique_ptr<server::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

// ---- Errors

// Whether a status has the code and the reason, the domain of the contract, and a message of one
// line.
::testing::AssertionResult FailedWith(const grpc::Status& status, grpc::StatusCode code,
                                      v1::ErrorReason reason);
// The same for the status of one message of a stream.
::testing::AssertionResult FailedWith(const google::rpc::Status& status, grpc::StatusCode code,
                                      v1::ErrorReason reason);
::testing::AssertionResult Succeeded(const grpc::Status& status);
v1::ErrorReason ReasonOf(const grpc::Status& status);
std::map<std::string, std::string> MetadataOf(const grpc::Status& status);
std::map<std::string, std::string> MetadataOf(const google::rpc::Status& status);
bool HasRetryInfo(const grpc::Status& status);

// ---- Configurations and tokens

struct Shape {
  std::int32_t kv_heads = 1;
  std::int32_t query_heads = 1;
  std::int32_t key_dim = 16;
  std::int32_t value_dim = 16;
};

v1::LayerGroup ExactGroup(const Shape& shape, v1::DataType storage = v1::F32);
v1::LayerGroup LinearGroup(const Shape& shape, v1::FeatureMapKind map = v1::ELU_PLUS_ONE);
// IDENTITY, unnormalised, with this update rule.
v1::LayerGroup GatedGroup(const Shape& shape, v1::UpdateRule::Decay decay, bool delta = false);
v1::LayerGroup KdeGroup(const Shape& shape, v1::KdeConfig::Mode mode = v1::KdeConfig::AUTO);
v1::SessionConfig ConfigOf(const std::vector<v1::LayerGroup>& groups);

struct Tokens {
  Shape shape;
  std::int64_t count = 0;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<std::uint8_t> mask;  // 0: masked; empty: none is
  std::vector<float> log_decays =
      {};  // empty: the layer takes none; else of equal number per token
  std::vector<float> rates = {};
};
Tokens RandomTokens(const Shape& shape, std::int64_t count, std::uint32_t seed);
// The gates that the group's update rule takes, and keys of about unit length, which delta rules
// need. Requires a map of key_dim features.
void AddGates(const v1::LayerGroup& group, std::uint32_t seed, Tokens& tokens);
std::vector<float> RandomQueries(const Shape& shape, std::int64_t count, std::uint32_t seed);

v1::Tensor MakeTensor(const float* elements, const std::vector<std::int64_t>& shape,
                      v1::DataType type = v1::F32);
std::vector<float> Floats(const v1::Tensor& tensor);

// Tokens [first, first + count) as a message at position `first`.
v1::LayerTokens Slice(const Tokens& tokens, std::int64_t first, std::int64_t count,
                      std::int32_t layer = 0, v1::DataType type = v1::F32);
// Queries [first, first + count).
v1::Tensor QueryTensor(const Shape& shape, const std::vector<float>& queries, std::int64_t first,
                       std::int64_t count, v1::DataType type = v1::F32);

// ---- Sessions

template <typename T>
struct Reply {
  grpc::Status status;
  T value;
  const T* operator->() const { return &value; }
};

// A session of a server, by raw calls. Thread-safe, but for Recreate.
class TestSession {
 public:
  // Creates the session; a failure fails the test.
  TestSession(v1::AttentionService::Stub& stub, const std::string& id,
              const v1::SessionConfig& config);

  const std::string& id() const { return id_; }
  std::uint64_t generation() const { return generation_; }

  Reply<v1::Session> Get() const;
  grpc::Status Delete() const;

  v1::AppendRequest AppendOf(const Tokens& tokens, std::int64_t first, std::int64_t count) const;
  v1::StepRequest StepOf(const Tokens& tokens, const std::vector<float>& queries,
                         std::int64_t first, std::int64_t count,
                         const v1::AnswerOptions& options = {}) const;
  v1::AttendRequest AttendOf(const Shape& shape, const std::vector<float>& queries,
                             std::int64_t first, std::int64_t count,
                             const v1::AnswerOptions& options = {}) const;

  Reply<v1::AppendResponse> Append(const v1::AppendRequest& request) const;
  Reply<v1::AttendResponse> Attend(const v1::AttendRequest& request) const;
  Reply<v1::StepResponse> Step(const v1::StepRequest& request) const;

  Reply<v1::AppendResponse> Append(const Tokens& tokens, std::int64_t first,
                                   std::int64_t count) const {
    return Append(AppendOf(tokens, first, count));
  }

 private:
  v1::AttentionService::Stub& stub_;
  std::string id_;
  std::uint64_t generation_ = 0;
};

// A context that fails a test instead of hanging it.
std::unique_ptr<grpc::ClientContext> Context(int seconds = 60);

using oracle::RelativeError;

}  // namespace attnd::e2e

#endif  // ATTND_TESTS_E2E_HARNESS_H_
