// Uploads of learned feature maps that stop, wait, are cancelled or meet a drain: they end, and
// hold nothing.
#include <malloc.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/feature_map_calls.h"
#include "tests/e2e/harness.h"
#include "tests/server/feature_map_fixture.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

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
