// Many sessions at once: each only ever sees its own tokens.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {
namespace {

// All values of a session are one number, so that every output is that number, whatever the weights
// and the position: a token of another session anywhere in it would show.
TEST(Isolation, ConcurrentSessionsNeverMix) {
  server::Options options = TestOptions();
  options.workers = 4;
  TestServer server(options);
  const Shape shape = {.kv_heads = 1, .query_heads = 2, .key_dim = 8, .value_dim = 4};
  constexpr std::size_t kSessions = 48;
  constexpr int kClients = 8;
  std::vector<std::unique_ptr<TestSession>> sessions;
  std::vector<Tokens> tokens;
  std::vector<std::atomic<std::int64_t>> positions(kSessions);
  for (std::size_t i = 0; i < kSessions; ++i) {
    sessions.push_back(std::make_unique<TestSession>(
        server.stub(), "s" + std::to_string(i),
        ConfigOf({i % 2 == 0 ? ExactGroup(shape) : LinearGroup(shape)})));
    tokens.push_back(RandomTokens(shape, 100, static_cast<std::uint32_t>(i)));
    tokens.back().values.assign(400, static_cast<float>(i + 1));
  }
  const std::vector<float> queries = RandomQueries(shape, 100, 1);
  std::atomic<int> mixed{0};
  std::atomic<int> failed{0};
  const auto check = [&](std::size_t i, const v1::Answer& answer) {
    for (const float output : Floats(answer.outputs())) {
      if (std::abs(output - static_cast<float>(i + 1)) > 1e-4F * static_cast<float>(i + 1)) ++mixed;
    }
  };
  std::vector<std::thread> clients;
  for (std::size_t c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(static_cast<std::uint32_t>(c));
      for (int round = 0; round < Rounds(300); ++round) {
        // Each client writes its own sessions and reads everybody's.
        const std::size_t mine = c + kClients * (random() % (kSessions / kClients));
        const auto count = static_cast<std::int64_t>(1 + random() % 40);
        const std::int64_t position = positions[mine];
        if (random() % 2 == 0) {
          v1::AppendRequest request = sessions[mine]->AppendOf(tokens[mine], 0, count);
          request.mutable_tokens(0)->set_position(position);
          if (!sessions[mine]->Append(request).status.ok()) ++failed;
        } else {
          v1::StepRequest request = sessions[mine]->StepOf(tokens[mine], queries, 0, count);
          request.mutable_tokens()->set_position(position);
          const Reply<v1::StepResponse> reply = sessions[mine]->Step(request);
          if (!reply.status.ok()) ++failed;
          check(mine, reply->answer());
        }
        positions[mine] = position + count;
        const std::size_t any = random() % kSessions;
        if (positions[any] == 0) continue;
        const Reply<v1::AttendResponse> reply = sessions[any]->Attend(sessions[any]->AttendOf(
            shape, queries, 0, static_cast<std::int64_t>(1 + random() % 20)));
        if (!reply.status.ok()) ++failed;
        check(any, reply->answer());
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(mixed, 0);
  EXPECT_EQ(failed, 0);
  for (std::size_t i = 0; i < kSessions; ++i) {
    EXPECT_EQ(sessions[i]->Get()->position(), positions[i]);
  }
}

// Clients that race for the same place: one wins, the others learn of it, nothing is lost.
TEST(Isolation, WritersThatRaceForOnePositionApplyOneMessageEach) {
  TestServer server;
  const Shape shape;
  const TestSession session(server.stub(), "s", ConfigOf({ExactGroup(shape)}));
  constexpr int kWriters = 6;
  constexpr std::int64_t kEach = 40;
  std::atomic<int> applied{0};
  std::atomic<int> wrong{0};
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&, w] {
      const Tokens tokens = RandomTokens(shape, 3, static_cast<std::uint32_t>(w));
      std::int64_t position = 0;
      for (std::int64_t done = 0; done < kEach;) {
        v1::AppendRequest request = session.AppendOf(tokens, 0, 3);
        request.mutable_tokens(0)->set_position(position);
        const grpc::Status status = session.Append(request).status;
        if (status.ok()) {
          ++done;
          ++applied;
          position += 3;
          continue;
        }
        const v1::ErrorReason reason = ReasonOf(status);
        if (reason != v1::REPLAY_MISMATCH && reason != v1::WRONG_POSITION) ++wrong;
        position = std::stoll(MetadataOf(status)["position"]);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(applied, kWriters * kEach);
  EXPECT_EQ(session.Get()->position(), kWriters * kEach * 3);
}

}  // namespace
}  // namespace attnd::e2e
