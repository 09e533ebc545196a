#include "tests/e2e/harness.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "engine/simd/convert.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/e2e/raw_socket.h"

namespace attnd::e2e {

server::Options TestOptions() {
  server::Options options;
  options.listen = "127.0.0.1:0";
  options.http_listen = "";
  options.workers = 2;
  options.max_state_bytes = std::int64_t{1} << 30;
  options.drain_deadline = absl::Seconds(5);
  return options;
}

TestServer::TestServer(const server::Options& options, const server::Clock& clock) {
  // A plain counter, of the process: no two servers draw the same, and tests repeat.
  static std::atomic<std::uint64_t> next{1000};
  auto server = server::Server::Start(options, clock, [] { return ++next; });
  if (!server.ok()) {
    ADD_FAILURE() << server.status();
    std::abort();
  }
  server_ = *std::move(server);
  channel_ = NewChannel();
  stub_ = v1::AttentionService::NewStub(channel_);
}

TestServer::~TestServer() {
  stub_ = nullptr;
  channel_ = nullptr;
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel(grpc::ChannelArguments args) const {
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), args);
}

double TestServer::Metric(const std::string& name) const {
  const std::string text = "\n" + HttpGet(server_->http_address(), "/metrics");
  const std::size_t at = text.find("\n" + name + " ");
  if (at == std::string::npos) return -1;
  return std::strtod(text.c_str() + at + 1 + name.size(), nullptr);
}

bool TestServer::WaitForMetric(const std::string& name, double value) const {
  for (int i = 0; i < 1000; ++i) {
    if (Metric(name) == value) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// ---- Errors

namespace {

google::rpc::Status RpcStatus(const grpc::Status& status) {
  google::rpc::Status rpc;
  rpc.ParseFromString(status.error_details());
  return rpc;
}

google::rpc::ErrorInfo InfoOf(const google::rpc::Status& rpc) {
  google::rpc::ErrorInfo info;
  for (const auto& detail : rpc.details()) {
    if (detail.type_url() == "type.googleapis.com/google.rpc.ErrorInfo") {
      info.ParseFromString(detail.value());
    }
  }
  return info;
}

::testing::AssertionResult Check(int code, const std::string& message,
                                 const google::rpc::ErrorInfo& info, grpc::StatusCode want_code,
                                 v1::ErrorReason want) {
  const bool one_line = !message.empty() && message.find('\n') == std::string::npos;
  if (code == want_code && info.reason() == v1::ErrorReason_Name(want) &&
      info.domain() == "attnd" && one_line) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "code " << code << ", reason '" << info.reason() << "', domain '" << info.domain()
         << "', message '" << message << "'; wanted code " << want_code << ", reason "
         << v1::ErrorReason_Name(want);
}

}  // namespace

::testing::AssertionResult FailedWith(const grpc::Status& status, grpc::StatusCode code,
                                      v1::ErrorReason reason) {
  return Check(status.error_code(), status.error_message(), InfoOf(RpcStatus(status)), code,
               reason);
}

::testing::AssertionResult FailedWith(const google::rpc::Status& status, grpc::StatusCode code,
                                      v1::ErrorReason reason) {
  return Check(status.code(), status.message(), InfoOf(status), code, reason);
}

::testing::AssertionResult Succeeded(const grpc::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "code " << status.error_code() << ": " << status.error_message();
}

v1::ErrorReason ReasonOf(const grpc::Status& status) {
  v1::ErrorReason reason = v1::ERROR_REASON_UNSPECIFIED;
  v1::ErrorReason_Parse(InfoOf(RpcStatus(status)).reason(), &reason);
  return reason;
}

std::map<std::string, std::string> MetadataOf(const google::rpc::Status& status) {
  const google::rpc::ErrorInfo info = InfoOf(status);
  return {info.metadata().begin(), info.metadata().end()};
}

std::map<std::string, std::string> MetadataOf(const grpc::Status& status) {
  return MetadataOf(RpcStatus(status));
}

bool HasRetryInfo(const grpc::Status& status) {
  const google::rpc::Status rpc = RpcStatus(status);
  return std::ranges::any_of(rpc.details(), [](const auto& detail) {
    return detail.type_url() == "type.googleapis.com/google.rpc.RetryInfo";
  });
}

// ---- Configurations and tokens

namespace {

v1::LayerGroup GroupOf(const Shape& shape) {
  v1::LayerGroup group;
  group.set_kv_heads(shape.kv_heads);
  group.set_query_heads(shape.query_heads);
  group.set_key_dim(shape.key_dim);
  group.set_value_dim(shape.value_dim);
  return group;
}

std::vector<float> Normal(std::int64_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(generator);
  return numbers;
}

}  // namespace

v1::LayerGroup ExactGroup(const Shape& shape, v1::DataType storage) {
  v1::LayerGroup group = GroupOf(shape);
  group.mutable_exact()->set_storage(storage);
  return group;
}

v1::LayerGroup LinearGroup(const Shape& shape, v1::FeatureMapKind map) {
  v1::LayerGroup group = GroupOf(shape);
  group.mutable_linear()->mutable_feature_map()->set_kind(map);
  if (map == v1::IDENTITY) group.mutable_linear()->set_normalization(v1::UNNORMALIZED);
  return group;
}

v1::LayerGroup GatedGroup(const Shape& shape, v1::UpdateRule::Decay decay, bool delta) {
  v1::LayerGroup group = LinearGroup(shape, v1::IDENTITY);
  group.mutable_linear()->mutable_update()->set_decay(decay);
  group.mutable_linear()->mutable_update()->set_delta(delta);
  return group;
}

v1::LayerGroup KdeGroup(const Shape& shape, v1::KdeConfig::Mode mode) {
  v1::LayerGroup group = GroupOf(shape);
  group.mutable_kde()->set_mode(mode);
  return group;
}

v1::SessionConfig ConfigOf(const std::vector<v1::LayerGroup>& groups) {
  v1::SessionConfig config;
  for (const v1::LayerGroup& group : groups) *config.add_layer_groups() = group;
  return config;
}

Tokens RandomTokens(const Shape& shape, std::int64_t count, std::uint32_t seed) {
  return {shape,
          count,
          Normal(count * shape.kv_heads * shape.key_dim, 2 * seed),
          Normal(count * shape.kv_heads * shape.value_dim, 2 * seed + 1),
          {},
          {},
          {}};
}

void AddGates(const v1::LayerGroup& group, std::uint32_t seed, Tokens& tokens) {
  const v1::UpdateRule& update = group.linear().update();
  const std::int64_t rows = tokens.count * tokens.shape.kv_heads;
  const auto sigmoids = [](std::vector<float> numbers, float most) {
    for (float& number : numbers) number = most / (1 + std::exp(-number));
    return numbers;
  };
  for (float& key : tokens.keys) key /= std::sqrt(static_cast<float>(tokens.shape.key_dim));
  if (update.decay() == v1::UpdateRule::PER_TOKEN) {
    tokens.log_decays = sigmoids(Normal(rows, seed), -0.2F);
  }
  if (update.decay() == v1::UpdateRule::PER_FEATURE) {
    tokens.log_decays = sigmoids(Normal(rows * tokens.shape.key_dim, seed), -0.2F);
  }
  if (update.delta()) tokens.rates = sigmoids(Normal(rows, seed + 1), 1.0F);
}

std::vector<float> RandomQueries(const Shape& shape, std::int64_t count, std::uint32_t seed) {
  return Normal(count * shape.query_heads * shape.key_dim, seed + 1'000'000);
}

v1::Tensor MakeTensor(const float* elements, const std::vector<std::int64_t>& shape,
                      v1::DataType type) {
  v1::Tensor tensor;
  tensor.set_dtype(type);
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    tensor.add_shape(size);
    count *= size;
  }
  std::string& data = *tensor.mutable_data();
  const std::size_t bytes = type == v1::F32 ? sizeof(float) : sizeof(std::uint16_t);
  data.resize(static_cast<std::size_t>(count) * bytes);
  if (type == v1::F32) {
    if (count > 0) std::memcpy(data.data(), elements, data.size());
    return tensor;
  }
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(count));
  if (type == v1::F16) {
    engine::F32ToF16(elements, narrow.data(), count);
  } else {
    engine::F32ToBf16(elements, narrow.data(), count);
  }
  std::memcpy(data.data(), narrow.data(), data.size());
  return tensor;
}

std::vector<float> Floats(const v1::Tensor& tensor) {
  if (tensor.dtype() == v1::F32) {
    std::vector<float> floats(tensor.data().size() / sizeof(float));
    if (!floats.empty()) std::memcpy(floats.data(), tensor.data().data(), tensor.data().size());
    return floats;
  }
  std::vector<std::uint16_t> narrow(tensor.data().size() / sizeof(std::uint16_t));
  if (!narrow.empty()) std::memcpy(narrow.data(), tensor.data().data(), tensor.data().size());
  std::vector<float> floats;
  for (const std::uint16_t bits : narrow) {
    if (tensor.dtype() == v1::BF16) {
      const std::uint32_t wide = std::uint32_t{bits} << 16;
      float number = 0;
      std::memcpy(&number, &wide, sizeof number);
      floats.push_back(number);
      continue;
    }
    const int exponent = bits >> 10 & 31;
    const int mantissa = bits & 1023;
    const double magnitude = exponent == 0    ? std::ldexp(mantissa, -24)
                             : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                              : std::ldexp(1024 + mantissa, exponent - 25);
    floats.push_back(static_cast<float>((bits >> 15) != 0 ? -magnitude : magnitude));
  }
  return floats;
}

v1::LayerTokens Slice(const Tokens& tokens, std::int64_t first, std::int64_t count,
                      std::int32_t layer, v1::DataType type) {
  const Shape& shape = tokens.shape;
  v1::LayerTokens slice;
  slice.set_layer(layer);
  slice.set_position(first);
  *slice.mutable_keys() = MakeTensor(tokens.keys.data() + first * shape.kv_heads * shape.key_dim,
                                     {count, shape.kv_heads, shape.key_dim}, type);
  *slice.mutable_values() =
      MakeTensor(tokens.values.data() + first * shape.kv_heads * shape.value_dim,
                 {count, shape.kv_heads, shape.value_dim}, type);
  if (!tokens.mask.empty()) {
    const auto begin = tokens.mask.begin() + first;
    slice.mutable_mask()->assign(begin, begin + count);
  }
  const auto gates = [&](const std::vector<float>& numbers, v1::Tensor* tensor) {
    const std::int64_t dim = std::ssize(numbers) / (tokens.count * shape.kv_heads);
    *tensor = MakeTensor(numbers.data() + first * shape.kv_heads * dim,
                         {count, shape.kv_heads, dim}, type);
  };
  if (!tokens.log_decays.empty()) gates(tokens.log_decays, slice.mutable_log_decays());
  if (!tokens.rates.empty()) gates(tokens.rates, slice.mutable_rates());
  return slice;
}

v1::Tensor QueryTensor(const Shape& shape, const std::vector<float>& queries, std::int64_t first,
                       std::int64_t count, v1::DataType type) {
  return MakeTensor(queries.data() + first * shape.query_heads * shape.key_dim,
                    {count, shape.query_heads, shape.key_dim}, type);
}

// ---- Sessions

std::unique_ptr<grpc::ClientContext> Context(int seconds) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
  return context;
}

TestSession::TestSession(v1::AttentionService::Stub& stub, const std::string& id,
                         const v1::SessionConfig& config)
    : stub_(stub), id_(id) {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  *request.mutable_config() = config;
  v1::Session session;
  const grpc::Status status = stub_.CreateSession(Context().get(), request, &session);
  EXPECT_TRUE(Succeeded(status)) << "CreateSession " << id;
  generation_ = session.generation();
}

Reply<v1::Session> TestSession::Get() const {
  v1::GetSessionRequest request;
  request.set_session_id(id_);
  Reply<v1::Session> reply;
  reply.status = stub_.GetSession(Context().get(), request, &reply.value);
  return reply;
}

grpc::Status TestSession::Delete() const {
  v1::DeleteSessionRequest request;
  request.set_session_id(id_);
  v1::DeleteSessionResponse response;
  return stub_.DeleteSession(Context().get(), request, &response);
}

v1::AppendRequest TestSession::AppendOf(const Tokens& tokens, std::int64_t first,
                                        std::int64_t count) const {
  v1::AppendRequest request;
  request.set_session_id(id_);
  request.set_generation(generation_);
  *request.add_tokens() = Slice(tokens, first, count);
  return request;
}

v1::StepRequest TestSession::StepOf(const Tokens& tokens, const std::vector<float>& queries,
                                    std::int64_t first, std::int64_t count,
                                    const v1::AnswerOptions& options) const {
  v1::StepRequest request;
  request.set_session_id(id_);
  request.set_generation(generation_);
  *request.mutable_tokens() = Slice(tokens, first, count);
  *request.mutable_queries() = QueryTensor(tokens.shape, queries, first, count);
  *request.mutable_options() = options;
  return request;
}

v1::AttendRequest TestSession::AttendOf(const Shape& shape, const std::vector<float>& queries,
                                        std::int64_t first, std::int64_t count,
                                        const v1::AnswerOptions& options) const {
  v1::AttendRequest request;
  request.set_session_id(id_);
  *request.mutable_queries() = QueryTensor(shape, queries, first, count);
  *request.mutable_options() = options;
  return request;
}

Reply<v1::AppendResponse> TestSession::Append(const v1::AppendRequest& request) const {
  Reply<v1::AppendResponse> reply;
  reply.status = stub_.Append(Context().get(), request, &reply.value);
  return reply;
}

Reply<v1::AttendResponse> TestSession::Attend(const v1::AttendRequest& request) const {
  Reply<v1::AttendResponse> reply;
  reply.status = stub_.Attend(Context().get(), request, &reply.value);
  return reply;
}

Reply<v1::StepResponse> TestSession::Step(const v1::StepRequest& request) const {
  Reply<v1::StepResponse> reply;
  reply.status = stub_.Step(Context().get(), request, &reply.value);
  return reply;
}

}  // namespace attnd::e2e
