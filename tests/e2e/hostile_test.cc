// Clients that send what nobody should: the server refuses by name, holds no more than it may,
// and goes on for everybody else.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/raw_call.h"
#include "tests/e2e/raw_socket.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape;
const std::vector<std::string> kUnaryCalls = {"CreateSession", "GetSession",    "ListSessions",
                                              "UpdateSession", "DeleteSession", "Append",
                                              "Attend",        "Step",          "GetServerInfo"};

std::string Path(const std::string& call) { return "/attnd.v1.AttentionService/" + call; }

class Hostile : public ::testing::Test {
 protected:
  static server::Options Options() {
    server::Options options = TestOptions();
    options.http_listen = "127.0.0.1:0";
    return options;
  }

  // A whole session's life works, the accounts are those of an idle server, and the metrics are
  // there.
  void ExpectHealthy() {
    const TestSession session(server_.stub(), "healthy", ConfigOf({LinearGroup(kShape)}));
    const Tokens tokens = RandomTokens(kShape, 100, 1);
    EXPECT_TRUE(Succeeded(session.Append(tokens, 0, 100).status));
    EXPECT_TRUE(Succeeded(
        session.Attend(session.AttendOf(kShape, RandomQueries(kShape, 3, 1), 0, 3)).status));
    EXPECT_TRUE(Succeeded(session.Delete()));
    EXPECT_TRUE(server_.WaitForMetric("attnd_queue_depth", 0));
    EXPECT_TRUE(server_.WaitForMetric("attnd_inflight_bytes", 0));
    EXPECT_GE(server_.Metric("process_resident_memory_bytes"), 0);
  }

  TestServer server_{Options()};
};

TEST_F(Hostile, RandomBytesAsMessagesAreRefused) {
  std::mt19937 random(1);
  for (int round = 0; round < Rounds(400); ++round) {
    std::string bytes(random() % 300, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    const std::string& call = kUnaryCalls[random() % kUnaryCalls.size()];
    const Reply<std::string> reply = RawCall(server_.channel(), Path(call), bytes);
    EXPECT_NE(reply.status.error_code(), StatusCode::DEADLINE_EXCEEDED) << call;
    EXPECT_NE(reply.status.error_code(), StatusCode::UNAVAILABLE) << call;
  }
  ExpectHealthy();
}

TEST_F(Hostile, TruncatedAndCorruptedMessagesNeverCountHalf) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const Tokens tokens = RandomTokens(kShape, 20, 1);
  const std::string append = session.AppendOf(tokens, 0, 5).SerializeAsString();
  for (std::size_t size = 0; size < append.size(); size += 1 + size / 40) {
    const Reply<std::string> reply =
        RawCall(server_.channel(), Path("Append"), append.substr(0, size));
    EXPECT_FALSE(reply.status.ok()) << "cut to " << size << " of " << append.size();
  }
  EXPECT_EQ(session.Get()->position(), 0);
  // One byte changed, in front of the numbers: wherever that is, the message is taken as a whole or
  // not at all.
  std::mt19937 random(2);
  const std::size_t head = append.size() - std::size_t{5} * 16 * 4 * 2;
  for (int round = 0; round < Rounds(200); ++round) {
    std::string bytes = append;
    bytes[random() % head] ^= static_cast<char>(1 + random() % 255);
    const Reply<std::string> reply = RawCall(server_.channel(), Path("Append"), bytes);
    const std::int64_t position = session.Get()->position();
    EXPECT_EQ(reply.status.ok(), position > 0);
    if (position > 0) return;  // what changed did not matter, to the tokens' layer say
  }
  ExpectHealthy();
}

TEST_F(Hostile, AMessageOverTheLimitIsRefused) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const std::int64_t limit = Options().max_message_bytes;
  std::string bytes(static_cast<std::size_t>(limit + 1), '\0');
  EXPECT_EQ(RawCall(server_.channel(), Path("Append"), bytes).status.error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  // One that just fits is taken.
  const std::int64_t count = limit / (std::int64_t{2} * 16 * 4) - 10;
  const Tokens tokens = RandomTokens(kShape, count, 1);
  EXPECT_TRUE(Succeeded(session.Append(tokens, 0, count).status));
  ExpectHealthy();
}

// The most memory that the process was seen to hold while this object lived, looked at every
// millisecond.
class ResidentPeak {
 public:
  ~ResidentPeak() { Stop(); }
  // Bytes above what was held at the beginning. Ends the watch.
  std::int64_t Growth() {
    Stop();
    return peak_ - first_;
  }

 private:
  static std::int64_t Resident() {
    std::int64_t total = 0;
    std::int64_t resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return resident * sysconf(_SC_PAGESIZE);
  }
  void Stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

  const std::int64_t first_ = Resident();
  std::int64_t peak_ = first_;  // the thread's until it has ended
  std::atomic<bool> stop_{false};
  std::thread thread_{[this] {
    while (!stop_) {
      peak_ = std::max(peak_, Resident());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }};
};

// Sends one message, compressed. Returns the status of the call and the answer, if there is one.
Reply<std::string> SendCompressed(TestServer& server, const std::string& call,
                                  const std::string& message,
                                  grpc_compression_algorithm algorithm) {
  grpc::GenericStub stub(server.channel());
  grpc::CompletionQueue queue;
  const auto context = Context();
  context->set_compression_algorithm(algorithm);
  const auto stream = stub.PrepareCall(context.get(), Path(call), &queue);
  void* tag = nullptr;
  bool ok = false;
  stream->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(message.data(), message.size(), grpc::Slice::STATIC_SLICE);
  stream->WriteLast(grpc::ByteBuffer(&slice, 1), {}, nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  queue.Next(&tag, &ok);
  Reply<std::string> reply;
  if (ok) reply.value = ToBytes(answer);
  stream->Finish(&reply.status, nullptr);
  queue.Next(&tag, &ok);
  return reply;
}

// gRPC checks the size of what arrives before it inflates it: 128 KiB become 128 MiB, sixteen times
// the limit.
TEST_F(Hostile, AMessageThatIsLargeOnceDecompressedIsRefusedWithoutDecompressingIt) {
  const std::string zeros(std::size_t{128} << 20, '\0');
  ASSERT_GT(static_cast<std::int64_t>(zeros.size()), 8 * Options().max_message_bytes);
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    for (const char* call : {"Append", "Stream"}) {
      ResidentPeak peak;
      const Reply<std::string> reply = SendCompressed(server_, call, zeros, algorithm);
      EXPECT_LT(peak.Growth(), std::int64_t{32} << 20) << call;
      EXPECT_EQ(reply.value, "") << call;
      // A stream whose message gRPC cannot read ends as if the client had ended it.
      EXPECT_EQ(reply.status.ok(), call == std::string("Stream")) << reply.status.error_message();
      EXPECT_NE(reply.status.error_code(), StatusCode::DEADLINE_EXCEEDED);
      EXPECT_NE(reply.status.error_code(), StatusCode::UNAVAILABLE);
    }
  }
  ExpectHealthy();
}

// What is sent compressed is refused as a whole, however small: it must not count as something
// else.
TEST_F(Hostile, ACompressedMessageIsNotAppended) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  Tokens tokens = RandomTokens(kShape, 100, 1);
  std::fill(tokens.keys.begin(), tokens.keys.end(), 0.0F);
  const std::string append = session.AppendOf(tokens, 0, 100).SerializeAsString();
  EXPECT_FALSE(SendCompressed(server_, "Append", append, GRPC_COMPRESS_GZIP).status.ok());
  EXPECT_EQ(session.Get()->position(), 0);
  EXPECT_TRUE(Succeeded(session.Append(tokens, 0, 100).status)) << "uncompressed";
}

TEST_F(Hostile, ShapesThatOverflowClaimNothing) {
  const TestSession session(server_.stub(), "s", ConfigOf({LinearGroup(kShape)}));
  const Tokens tokens = RandomTokens(kShape, 5, 1);
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t rows :
       {std::int64_t{1} << 40, std::int64_t{1} << 58, std::int64_t{1} << 62, kMax, kMax / 64 + 1}) {
    v1::AppendRequest append = session.AppendOf(tokens, 0, 5);
    append.mutable_tokens(0)->mutable_keys()->set_shape(0, rows);
    append.mutable_tokens(0)->mutable_values()->set_shape(0, rows);
    EXPECT_TRUE(
        FailedWith(session.Append(append).status, StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
    v1::AttendRequest attend = session.AttendOf(kShape, RandomQueries(kShape, 5, 1), 0, 5);
    attend.mutable_queries()->set_shape(0, rows);
    EXPECT_TRUE(
        FailedWith(session.Attend(attend).status, StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
  }
  // Very many dimensions.
  v1::AppendRequest append = session.AppendOf(tokens, 0, 5);
  for (int i = 0; i < 100'000; ++i) append.mutable_tokens(0)->mutable_keys()->add_shape(1);
  const grpc::Status status = session.Append(append).status;
  EXPECT_TRUE(FailedWith(status, StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
  EXPECT_LT(status.error_message().size(), 500U);
  // Very many slices.
  append = session.AppendOf(tokens, 0, 5);
  for (int i = 0; i < 10'000; ++i) append.add_tokens();
  EXPECT_TRUE(
      FailedWith(session.Append(append).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  ExpectHealthy();
}

TEST_F(Hostile, SessionsLargerThanTheMemoryAreNotMade) {
  server::Options options = TestOptions();
  options.max_state_bytes = std::int64_t{1} << 30;
  TestServer server(options);
  v1::CreateSessionRequest request;
  v1::LayerGroup group =
      LinearGroup({.kv_heads = 7, .query_heads = 7, .key_dim = 1024, .value_dim = 1024});
  group.set_count(16);  // about 90 MB each
  *request.mutable_config() = ConfigOf({group});
  v1::Session session;
  grpc::Status status = server.stub().CreateSession(Context().get(), request, &session);
  EXPECT_TRUE(FailedWith(status, StatusCode::RESOURCE_EXHAUSTED, v1::STATE_BYTES));
  // Where one layer is too large already it is refused whatever the memory.
  *request.mutable_config() = ConfigOf(
      {LinearGroup({.kv_heads = 1024, .query_heads = 1024, .key_dim = 1024, .value_dim = 1024})});
  status = server.stub().CreateSession(Context().get(), request, &session);
  EXPECT_TRUE(FailedWith(status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
}

// Random bytes inside a stream: the stream ends, the server does not.
TEST_F(Hostile, RandomBytesInAStreamEndTheStreamOnly) {
  std::mt19937 random(3);
  for (int round = 0; round < Rounds(60); ++round) {
    grpc::GenericStub stub(server_.channel());
    grpc::CompletionQueue queue;
    const auto context = Context(10);
    const auto call = stub.PrepareCall(context.get(), Path("Stream"), &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    ASSERT_TRUE(queue.Next(&tag, &ok));
    for (int i = 0; i < 3 && ok; ++i) {
      std::string bytes(1 + random() % 100, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      call->Write(ToBuffer(bytes), nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok));
    }
    if (random() % 2 == 0) context->TryCancel();
    if (ok) {
      call->WritesDone(nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok));
    }
    // Bytes that happen to be a message are answered; the status comes behind the answers.
    for (ok = true; ok;) {
      grpc::ByteBuffer answer;
      call->Read(&answer, nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok));
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_NE(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  }
  ExpectHealthy();
}

TEST_F(Hostile, ConnectionsThatSpeakNonsenseOrNothingDisturbNobody) {
  std::mt19937 random(4);
  std::vector<RawSocket> sockets;
  for (int i = 0; i < 60; ++i) {
    sockets.emplace_back(server_.address());
    ASSERT_TRUE(sockets.back().connected());
    const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    switch (i % 6) {
      case 0:  // nothing
        break;
      case 1:
        sockets.back().Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        break;
      case 2:
        sockets.back().Send(preface);
        break;
      case 3: {  // HTTP/2, then noise
        std::string noise(500, '\0');
        for (char& byte : noise) byte = static_cast<char>(random());
        sockets.back().Send(preface + noise);
        break;
      }
      case 4:  // a frame header that promises 16 MB
        sockets.back().Send(preface + std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x01", 9));
        break;
      case 5:
        sockets.back().Send(preface.substr(0, 10));
        sockets.back().HalfClose();
        break;
    }
  }
  ExpectHealthy();
  sockets.clear();
  ExpectHealthy();
}

TEST_F(Hostile, AThousandConnectionsAreServed) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(RandomTokens(kShape, 10, 1), 0, 10).status));
  std::vector<RawSocket> silent;
  for (int i = 0; i < 900; ++i) {
    silent.emplace_back(server_.address());
    ASSERT_TRUE(silent.back().connected()) << i;
  }
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        const auto stub = v1::AttentionService::NewStub(server_.NewChannel());
        const auto context = Context();
        v1::AttendResponse response;
        if (stub->Attend(context.get(), session.AttendOf(kShape, RandomQueries(kShape, 1, 1), 0, 1),
                         &response)
                .ok()) {
          ++answered;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answered, 100);
  ExpectHealthy();
}

TEST_F(Hostile, CallsThatAreGivenUpLeaveNothing) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  const Tokens tokens = RandomTokens(kShape, 4000, 1);
  ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 4000).status));
  const std::vector<float> queries = RandomQueries(kShape, 4000, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<std::uint32_t>(t));
      for (int i = 0; i < Rounds(40); ++i) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::microseconds(200 + random() % 20'000));
        v1::AttendResponse response;
        server_.stub().Attend(&context, session.AttendOf(kShape, queries, 0, 4000), &response);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectHealthy();
}

TEST_F(Hostile, AListOfLargeSessionsFitsIntoAnAnswer) {
  v1::SessionConfig config;
  for (int i = 0; i < 64; ++i) {
    (*config.mutable_labels())[std::to_string(i) + std::string(60, 'k')] = std::string(255, 'v');
  }
  for (int i = 0; i < 200; ++i)
    *config.add_layer_groups() = ExactGroup({.key_dim = 4, .value_dim = 4});
  for (int i = 0; i < 400; ++i) {
    const TestSession session(server_.stub(), "s" + std::to_string(i), config);
  }
  v1::ListSessionsRequest request;
  request.set_page_size(1000);
  int seen = 0;
  do {
    v1::ListSessionsResponse page;
    ASSERT_TRUE(Succeeded(server_.stub().ListSessions(Context().get(), request, &page)));
    EXPECT_LE(static_cast<std::int64_t>(page.ByteSizeLong()), Options().max_response_bytes);
    ASSERT_GT(page.sessions_size(), 0);
    seen += page.sessions_size();
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, 400);
}

}  // namespace
}  // namespace attnd::e2e
