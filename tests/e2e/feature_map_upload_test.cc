// Uploads of learned feature maps: whole, cut, repeated and hostile, and the room that they need.
#include <cstddef>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/feature_map_calls.h"
#include "tests/e2e/harness.h"
#include "tests/server/feature_map_fixture.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

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

grpc::Status Create(v1::AttentionService::Stub& stub, const std::string& id,
                    const v1::LayerGroup& group) {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  *request.mutable_config() = ConfigOf({group});
  v1::Session session;
  return stub.CreateSession(Context().get(), request, &session);
}

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

}  // namespace
}  // namespace attnd::e2e
