// Learned feature maps over the wire: uploads whole, cut, repeated, hostile and abandoned, and
// sessions that answer with them.
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/server/feature_map_fixture.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;
using Row = std::vector<double>;

const Shape kShape = {.kv_heads = 2, .query_heads = 4, .key_dim = 6, .value_dim = 5};

TestMap MapOf(v1::FeatureMapHeader::Activation activation, std::uint32_t seed) {
  return MakeTestMap(activation, 2, 4, 6, 10, true, seed);
}

Reply<v1::PutFeatureMapResponse> Put(v1::AttentionService::Stub& stub, const TestMap& map,
                                     std::size_t piece = 1 << 16) {
  Reply<v1::PutFeatureMapResponse> reply;
  const auto context = Context();
  const auto writer = stub.PutFeatureMap(context.get(), &reply.value);
  bool open = writer->Write(map.Header());
  for (std::size_t at = 0; open && at < map.payload.size(); at += piece) {
    open = writer->Write(map.Chunk(at, piece));
  }
  writer->WritesDone();
  reply.status = writer->Finish();
  return reply;
}

// Any messages, then the end.
grpc::Status Send(v1::AttentionService::Stub& stub,
                  const std::vector<v1::PutFeatureMapRequest>& messages) {
  v1::PutFeatureMapResponse response;
  const auto context = Context();
  const auto writer = stub.PutFeatureMap(context.get(), &response);
  for (const auto& message : messages) {
    if (!writer->Write(message)) break;
  }
  writer->WritesDone();
  return writer->Finish();
}

v1::LayerGroup LearnedGroup(const TestMap& map, const Shape& shape = kShape) {
  v1::LayerGroup group = LinearGroup(shape, v1::LEARNED);
  group.mutable_linear()->mutable_feature_map()->set_weights(map.header.sha256());
  return group;
}

grpc::Status Create(v1::AttentionService::Stub& stub, const std::string& id,
                    const v1::LayerGroup& group) {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  *request.mutable_config() = ConfigOf({group});
  v1::Session session;
  return stub.CreateSession(Context().get(), request, &session);
}

// ---- The definition in f64

// y = W x + b of a kv-head, or of a query head.
Row Project(const TestMap& map, bool query, std::int64_t head, const Row& x) {
  const std::int64_t m = map.header.features();
  const std::int64_t d = map.header.key_dim();
  const std::int64_t heads = query ? map.header.query_heads() : map.header.kv_heads();
  const float* weights =
      map.numbers.data() + (query ? map.header.kv_heads() * m * (d + 1) : std::int64_t{0});
  const float* biases = weights + heads * m * d;
  Row y;
  for (std::int64_t j = 0; j < m; ++j) {
    double sum = static_cast<double>(biases[head * m + j]);
    for (std::int64_t k = 0; k < d; ++k) {
      sum += static_cast<double>(weights[(head * m + j) * d + k]) * x[static_cast<std::size_t>(k)];
    }
    y.push_back(sum);
  }
  return y;
}

Row ExpOf(const Row& y, double sign, bool normalized) {
  Row e;
  double sum = 0;
  for (const double v : y) sum += e.emplace_back(std::exp(sign * v));
  for (double& v : e) v /= normalized ? sum : 1;
  return e;
}

double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double Kernel(v1::FeatureMapHeader::Activation activation, Row q, Row k) {
  switch (activation) {
    case v1::FeatureMapHeader::EXP:
      return Dot(ExpOf(q, 1, false), ExpOf(k, 1, false));
    case v1::FeatureMapHeader::SOFTMAX:
      return Dot(ExpOf(q, 1, true), ExpOf(k, 1, true));
    case v1::FeatureMapHeader::HEDGEHOG:
      return Dot(ExpOf(q, 1, true), ExpOf(k, 1, true)) +
             Dot(ExpOf(q, -1, true), ExpOf(k, -1, true));
    default:
      for (double& v : q) v = std::max(v, 0.0);
      for (double& v : k) v = std::max(v, 0.0);
      return Dot(q, k);
  }
}

// Rows of one head out of [n, heads, width].
std::vector<float> HeadRows(const std::vector<float>& all, std::int64_t heads, std::int64_t head,
                            std::int64_t width) {
  std::vector<float> rows;
  for (std::int64_t i = head * width; i < std::ssize(all); i += heads * width) {
    rows.insert(rows.end(), all.begin() + i, all.begin() + i + width);
  }
  return rows;
}

oracle::Answers Truth(const TestMap& map, const Tokens& tokens, const std::vector<float>& queries,
                      std::int64_t count, std::int64_t head) {
  const std::int64_t kv = head / (kShape.query_heads / kShape.kv_heads);
  const std::vector<float> keys = HeadRows(tokens.keys, kShape.kv_heads, kv, kShape.key_dim);
  const std::vector<float> values = HeadRows(tokens.values, kShape.kv_heads, kv, kShape.value_dim);
  const std::vector<float> rows = HeadRows(queries, kShape.query_heads, head, kShape.key_dim);
  oracle::Context context;
  context.key_dim = kShape.key_dim;
  context.value_dim = kShape.value_dim;
  context.tokens = tokens.count;
  context.keys = keys.data();
  context.values = values.data();
  return oracle::BySimilarity(
      context,
      {rows.data(), oracle::AllVisible(count, tokens.count),
       std::vector<std::int64_t>(static_cast<std::size_t>(count))},
      [&](const Row& q, const Row& k, std::int64_t, std::int64_t) {
        return Kernel(map.header.activation(), Project(map, true, head, q),
                      Project(map, false, kv, k));
      },
      /*normalized=*/true);
}

// ---- Tests

TEST(PutFeatureMap, TakesAMapInManySmallChunksAndOnce) {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  const TestMap map = MapOf(v1::FeatureMapHeader::HEDGEHOG, 1);
  const auto first = Put(server.stub(), map, 3);
  ASSERT_TRUE(Succeeded(first.status));
  EXPECT_FALSE(first->already_there());
  EXPECT_EQ(first->sha256(), map.header.sha256());
  const auto second = Put(server.stub(), map);
  ASSERT_TRUE(Succeeded(second.status));
  EXPECT_TRUE(second->already_there());
  EXPECT_EQ(second->bytes(), first->bytes());
  EXPECT_EQ(server.Metric("attnd_feature_maps"), 1);
  EXPECT_GE(server.Metric("attnd_feature_map_bytes"), static_cast<double>(first->bytes()));
  EXPECT_EQ(server.Metric("attnd_feature_map_uploads_total{result=\"stored\"}"), 1);
  EXPECT_EQ(server.Metric("attnd_feature_map_uploads_total{result=\"already_there\"}"), 1);
}

TEST(PutFeatureMap, AMapThatIsThereNeedsItsHeaderOnly) {
  TestServer server;
  const TestMap map = MakeTestMap(v1::FeatureMapHeader::RELU, 8, 8, 128, 128, false, 2);
  ASSERT_TRUE(Succeeded(Put(server.stub(), map, 1 << 20).status));
  v1::PutFeatureMapResponse response;
  const auto context = Context();
  const auto writer = server.stub().PutFeatureMap(context.get(), &response);
  ASSERT_TRUE(writer->Write(map.Header()));
  // Neither the payload nor the end is sent.
  EXPECT_TRUE(Succeeded(writer->Finish()));
  EXPECT_TRUE(response.already_there());
}

TEST(PutFeatureMap, SessionsAnswerByTheDefinitionOfTheirMap) {
  TestServer server;
  for (const auto activation : {v1::FeatureMapHeader::RELU, v1::FeatureMapHeader::EXP,
                                v1::FeatureMapHeader::SOFTMAX, v1::FeatureMapHeader::HEDGEHOG}) {
    const TestMap map = MapOf(activation, 3);
    ASSERT_TRUE(Succeeded(Put(server.stub(), map, 777).status));
    const TestSession session(server.stub(), v1::FeatureMapHeader::Activation_Name(activation),
                              ConfigOf({LearnedGroup(map)}));
    const Tokens tokens = RandomTokens(kShape, 150, 4);
    ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 100).status));
    ASSERT_TRUE(Succeeded(session.Append(tokens, 100, 50).status));
    const std::vector<float> queries = RandomQueries(kShape, 20, 5);
    v1::AnswerOptions wanted;
    wanted.set_flags(true);
    wanted.set_denominators(true);
    const auto reply = session.Attend(session.AttendOf(kShape, queries, 0, 20, wanted));
    ASSERT_TRUE(Succeeded(reply.status));
    const std::vector<float> outputs = Floats(reply->answer().outputs());
    std::vector<float> denominators = Floats(reply->answer().denominators());
    EXPECT_EQ(reply->answer().flags(), std::string(80, '\0'));
    const bool scaled = activation == v1::FeatureMapHeader::EXP;
    ASSERT_EQ(reply->answer().denominator_exponents_size(), scaled ? 80 : 0);
    for (int i = 0; scaled && i < 80; ++i) {
      float& denominator = denominators[static_cast<std::size_t>(i)];
      denominator = std::ldexp(denominator, reply->answer().denominator_exponents(i));
    }
    for (std::int64_t head = 0; head < kShape.query_heads; ++head) {
      const oracle::Answers truth = Truth(map, tokens, queries, 20, head);
      EXPECT_LT(RelativeError(HeadRows(outputs, kShape.query_heads, head, kShape.value_dim),
                              truth.outputs),
                3e-6)
          << session.id() << " head " << head;
      EXPECT_LT(
          RelativeError(HeadRows(denominators, kShape.query_heads, head, 1), truth.denominators),
          3e-6);
    }
    const auto described = session.Get();
    EXPECT_EQ(described->engine_facts(0).feature_dim(),
              activation == v1::FeatureMapHeader::HEDGEHOG ? 20 : 10);
    EXPECT_EQ(described->config().layer_groups(0).linear().feature_map().weights(),
              map.header.sha256());
  }
}

TEST(PutFeatureMap, AttendAndStepAgreeBitForBit) {
  TestServer server;
  const TestMap map = MapOf(v1::FeatureMapHeader::EXP, 6);
  ASSERT_TRUE(Succeeded(Put(server.stub(), map).status));
  const Tokens tokens = RandomTokens(kShape, 130, 7);
  const std::vector<float> queries = RandomQueries(kShape, 130, 8);
  const TestSession stepped(server.stub(), "stepped", ConfigOf({LearnedGroup(map)}));
  const TestSession appended(server.stub(), "appended", ConfigOf({LearnedGroup(map)}));
  const auto steps = stepped.Step(stepped.StepOf(tokens, queries, 0, 130));
  ASSERT_TRUE(Succeeded(steps.status));
  const std::size_t row = static_cast<std::size_t>(kShape.query_heads * kShape.value_dim) * 4;
  for (std::int64_t i = 0; i < 130; ++i) {
    ASSERT_TRUE(Succeeded(appended.Append(tokens, i, 1).status));
    const auto answer = appended.Attend(appended.AttendOf(kShape, queries, i, 1));
    ASSERT_TRUE(Succeeded(answer.status));
    ASSERT_EQ(answer->answer().outputs().data(),
              steps->answer().outputs().data().substr(static_cast<std::size_t>(i) * row, row))
        << i;
  }
}

TEST(PutFeatureMap, AnUnknownMapIsAPreconditionThatAnUploadMeets) {
  TestServer server;
  const TestMap map = MapOf(v1::FeatureMapHeader::RELU, 9);
  EXPECT_TRUE(FailedWith(Create(server.stub(), "s", LearnedGroup(map)),
                         StatusCode::FAILED_PRECONDITION, v1::UNKNOWN_FEATURE_MAP));
  ASSERT_TRUE(Succeeded(Put(server.stub(), map).status));
  EXPECT_TRUE(Succeeded(Create(server.stub(), "s", LearnedGroup(map))));
  // A retry of the creation, as after a lost answer.
  EXPECT_TRUE(Succeeded(Create(server.stub(), "s", LearnedGroup(map))));
  const TestMap other = MapOf(v1::FeatureMapHeader::RELU, 10);
  ASSERT_TRUE(Succeeded(Put(server.stub(), other).status));
  EXPECT_TRUE(FailedWith(Create(server.stub(), "s", LearnedGroup(other)),
                         StatusCode::ALREADY_EXISTS, v1::SESSION_EXISTS));
}

TEST(PutFeatureMap, AMapForAnotherShapeIsRefused) {
  TestServer server;
  const TestMap map = MapOf(v1::FeatureMapHeader::RELU, 11);
  ASSERT_TRUE(Succeeded(Put(server.stub(), map).status));
  for (const Shape& shape : {Shape{2, 4, 7, 5}, Shape{1, 4, 6, 5}, Shape{2, 2, 6, 5}}) {
    EXPECT_TRUE(FailedWith(Create(server.stub(), "s", LearnedGroup(map, shape)),
                           StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  }
}

TEST(PutFeatureMap, StreamsThatAreNoUploadAreRefused) {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  const TestMap map = MapOf(v1::FeatureMapHeader::RELU, 12);
  const std::size_t size = map.payload.size();
  TestMap changed = map;
  changed.payload[5] = static_cast<char>(changed.payload[5] ^ 4);
  TestMap large = map;
  large.payload.resize((1 << 20) + 1);
  const std::vector<std::vector<v1::PutFeatureMapRequest>> streams = {
      {},
      {{}},
      {map.Chunk(0, size)},
      {map.Header()},
      {map.Header(), map.Chunk(0, size - 1)},
      {map.Header(), map.Chunk(0, size), map.Chunk(0, 1)},
      {map.Header(), large.Chunk(0, large.payload.size())},
      {map.Header(), map.Chunk(0, 0)},
      {map.Header(), map.Header()},
      {map.Header(), changed.Chunk(0, size)},
  };
  for (std::size_t i = 0; i < streams.size(); ++i) {
    EXPECT_TRUE(FailedWith(Send(server.stub(), streams[i]), StatusCode::INVALID_ARGUMENT,
                           v1::INVALID_FIELD))
        << "stream " << i;
  }
  EXPECT_EQ(server.Metric("attnd_feature_maps"), 0);
  EXPECT_EQ(server.Metric("attnd_feature_map_bytes"), 0);
  EXPECT_EQ(server.Metric("attnd_feature_map_uploads_total{result=\"invalid\"}"),
            static_cast<double>(streams.size()));
}

TEST(PutFeatureMap, MapsInUseLeaveRoomWhenTheirSessionsGo) {
  server::Options options = TestOptions();
  const TestMap first = MapOf(v1::FeatureMapHeader::RELU, 13);
  const TestMap second = MapOf(v1::FeatureMapHeader::RELU, 14);
  // Room for one and a half.
  options.max_feature_map_bytes = 5000;
  options.max_feature_map_size = 5000;
  TestServer server(options);
  const auto stored = Put(server.stub(), first);
  ASSERT_TRUE(Succeeded(stored.status));
  ASSERT_LT(stored->bytes(), 5000);
  ASSERT_GT(stored->bytes(), 2500);
  const TestSession session(server.stub(), "s", ConfigOf({LearnedGroup(first)}));
  const grpc::Status full = Put(server.stub(), second).status;
  EXPECT_TRUE(FailedWith(full, StatusCode::RESOURCE_EXHAUSTED, v1::FEATURE_MAP_BYTES));
  EXPECT_TRUE(HasRetryInfo(full));
  ASSERT_TRUE(Succeeded(session.Delete()));
  EXPECT_TRUE(Succeeded(Put(server.stub(), second).status));
  // Nobody held the first any more, and its room was needed.
  EXPECT_TRUE(FailedWith(Create(server.stub(), "t", LearnedGroup(first)),
                         StatusCode::FAILED_PRECONDITION, v1::UNKNOWN_FEATURE_MAP));
  const grpc::Status large =
      Put(server.stub(), MakeTestMap(v1::FeatureMapHeader::RELU, 1, 1, 64, 64, false, 1)).status;
  EXPECT_TRUE(FailedWith(large, StatusCode::RESOURCE_EXHAUSTED, v1::FEATURE_MAP_BYTES));
  EXPECT_FALSE(HasRetryInfo(large));
}

TEST(PutFeatureMap, AnUploadThatStopsIsEndedAndGivesItsMemoryBack) {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  options.feature_map_upload_timeout = absl::Milliseconds(400);
  TestServer server(options);
  const TestMap map = MapOf(v1::FeatureMapHeader::RELU, 15);
  v1::PutFeatureMapResponse response;
  const auto context = Context();
  const auto writer = server.stub().PutFeatureMap(context.get(), &response);
  ASSERT_TRUE(writer->Write(map.Header()));
  ASSERT_TRUE(writer->Write(map.Chunk(0, 500)));
  const grpc::Status status = writer->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(status.error_message(),
            "the map was not uploaded within feature_map_upload_timeout = 400ms");
  EXPECT_TRUE(server.WaitForMetric("attnd_feature_map_bytes", 0));
  EXPECT_EQ(server.Metric("attnd_feature_map_uploads_total{result=\"abandoned\"}"), 1);
}

// Admitted while it was taken only, a message stayed until the next one came: calls that sent no
// more held it as long as they liked, outside of max_inflight_bytes.
TEST(PutFeatureMap, ACallThatWaitsForItsNextMessageHoldsNoLargeOne) {
  constexpr int kCalls = 48;
  constexpr std::int64_t kLarge = std::int64_t{7} << 20;
  // gRPC's buffers were seen to keep 20 MB, however many calls there are.
  constexpr std::int64_t kMost = kCalls * kLarge / 4;
  // The allocator's own count.
  const auto allocated = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
  };
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  const TestMap map = MapOf(v1::FeatureMapHeader::RELU, 18);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<v1::PutFeatureMapResponse> responses(kCalls);
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::PutFeatureMapRequest>>> writers;
  const std::int64_t start = allocated();
  for (int i = 0; i < kCalls; ++i) {
    v1::PutFeatureMapRequest request = map.Header();
    request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
        1000, std::string(static_cast<std::size_t>(kLarge), 'x'));
    contexts.push_back(Context());
    writers.push_back(server.stub().PutFeatureMap(contexts.back().get(),
                                                  &responses[static_cast<std::size_t>(i)]));
    ASSERT_TRUE(writers.back()->Write(request));
  }
  ASSERT_TRUE(server.WaitForMetric(
      "grpc_server_msg_received_total{grpc_method=\"PutFeatureMap\",grpc_service=\"attnd.v1."
      "AttentionService\",grpc_type=\"client_stream\"}",
      kCalls));
  // The last one may still be in someone's hands.
  for (int i = 0; i < 1000 && allocated() - start >= kMost; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_LT(allocated() - start, kMost) << kCalls << " calls of " << kLarge << " bytes";
  for (int i = 0; i < kCalls; ++i) {
    contexts[static_cast<std::size_t>(i)]->TryCancel();
    EXPECT_EQ(writers[static_cast<std::size_t>(i)]->Finish().error_code(), StatusCode::CANCELLED);
  }
}

TEST(PutFeatureMap, ACancelledUploadGivesItsMemoryBack) {
  server::Options options = TestOptions();
  options.http_listen = "127.0.0.1:0";
  TestServer server(options);
  const TestMap map = MapOf(v1::FeatureMapHeader::RELU, 16);
  for (int round = 0; round < 20; ++round) {
    v1::PutFeatureMapResponse response;
    const auto context = Context();
    const auto writer = server.stub().PutFeatureMap(context.get(), &response);
    ASSERT_TRUE(writer->Write(map.Header()));
    writer->Write(map.Chunk(0, 500));
    if (round % 2 == 1) writer->Write(map.Chunk(500, map.payload.size()));
    context->TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), StatusCode::CANCELLED);
  }
  EXPECT_TRUE(server.WaitForMetric("attnd_feature_map_uploads_total{result=\"abandoned\"}", 20));
  EXPECT_EQ(server.Metric("attnd_feature_map_bytes"), 0);
}

TEST(PutFeatureMap, ADrainEndsUploadsUnderWay) {
  TestServer server;
  const TestMap map = MapOf(v1::FeatureMapHeader::RELU, 17);
  v1::PutFeatureMapResponse response;
  const auto context = Context();
  const auto writer = server.stub().PutFeatureMap(context.get(), &response);
  ASSERT_TRUE(writer->Write(map.Header()));
  ASSERT_TRUE(writer->Write(map.Chunk(0, 500)));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto start = std::chrono::steady_clock::now();
  std::thread drain([&] { server.server().Drain(); });
  const grpc::Status status = writer->Finish();
  EXPECT_TRUE(FailedWith(status, StatusCode::UNAVAILABLE, v1::SHUTTING_DOWN));
  EXPECT_TRUE(HasRetryInfo(status));
  drain.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

// Drains, cancellations and takers race for the end of the same calls.
TEST(PutFeatureMap, UploadsByManyEndWellWhileTheServerDrains) {
  TestServer server;
  std::vector<TestMap> maps;
  for (std::uint32_t i = 0; i < 4; ++i) maps.push_back(MapOf(v1::FeatureMapHeader::SOFTMAX, i));
  std::vector<std::thread> clients;
  for (std::size_t t = 0; t < 6; ++t) {
    clients.emplace_back([&, t] {
      for (std::size_t round = 0;; ++round) {
        const auto reply = Put(server.stub(), maps[(t + round) % 4], 100 + 50 * t);
        if (!reply.status.ok()) {
          EXPECT_EQ(reply.status.error_code(), StatusCode::UNAVAILABLE)
              << reply.status.error_message();
          return;
        }
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  server.server().Drain();
  for (std::thread& client : clients) client.join();
}

}  // namespace
}  // namespace attnd::e2e
