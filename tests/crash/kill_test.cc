// A server under load is killed with SIGKILL at random moments and started again on its store, many
// times. After each start a LOGGED session has every token that was acknowledged, a CHECKPOINTED
// one every token up to the durable position that was acknowledged, none counts twice, and both
// answer with the bits of a session that got the same tokens undisturbed.
//
// ATTND_KILL_ROUNDS: how often it is killed; 20 by default.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "attnd/v1/attention.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/process/server_process.h"

namespace attnd {
namespace {

constexpr std::int64_t kDim = 8;
constexpr int kLayers = 4;
constexpr std::uint64_t kMostTokens = 96;  // of a message
constexpr char kModel[] = "undisturbed";

int KillRounds() {
  const char* rounds = std::getenv("ATTND_KILL_ROUNDS");
  return rounds == nullptr ? 20 : std::atoi(rounds);
}

v1::SessionConfig Config(v1::Durability durability) {
  v1::SessionConfig config;
  config.set_durability(durability);
  for (int layer = 0; layer < kLayers; ++layer) {
    v1::LayerGroup& group = *config.add_layer_groups();
    group.set_key_dim(kDim);
  }
  config.mutable_layer_groups(0)->mutable_exact();
  config.mutable_layer_groups(1)->mutable_linear()->mutable_feature_map()->set_kind(
      v1::ELU_PLUS_ONE);
  config.mutable_layer_groups(2)->mutable_kde()->set_mode(v1::KdeConfig::INDEX);
  config.mutable_layer_groups(3)->mutable_exact();
  config.mutable_layer_groups(3)->set_window_tokens(500);
  return config;
}

v1::Tensor Rows(std::int64_t first, std::int64_t count, std::uint64_t seed) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::F32);
  tensor.add_shape(count);
  tensor.add_shape(1);
  tensor.add_shape(kDim);
  std::vector<float> numbers;
  for (std::int64_t row = first; row < first + count; ++row) {
    // A token is a function of its position alone, whatever message brings it.
    std::mt19937_64 random(seed * 1'000'003 + static_cast<std::uint64_t>(row));
    for (std::int64_t i = 0; i < kDim; ++i) {
      numbers.push_back(static_cast<float>(random() % 2001) / 1000.0F - 1.0F);
    }
  }
  tensor.mutable_data()->assign(reinterpret_cast<const char*>(numbers.data()),
                                numbers.size() * sizeof(float));
  return tensor;
}

v1::AppendRequest Append(const v1::Session& session, std::int64_t position, std::int64_t count) {
  v1::AppendRequest request;
  request.set_session_id(session.session_id());
  request.set_generation(session.generation());
  for (int layer = 0; layer < kLayers; ++layer) {
    v1::LayerTokens& tokens = *request.add_tokens();
    tokens.set_layer(layer);
    tokens.set_position(position);
    *tokens.mutable_keys() = Rows(position, count, 2 * static_cast<std::uint64_t>(layer));
    *tokens.mutable_values() = Rows(position, count, 2 * static_cast<std::uint64_t>(layer) + 1);
  }
  return request;
}

class RunningServer {
 public:
  explicit RunningServer(const std::string& directory)
      : process_({ATTND_PROGRAM, "--listen=127.0.0.1:0", "--http_listen=", "--log_level=error",
                  "--ready_file=READY_FILE", "--data_dir=" + directory,
                  "--checkpoint_interval=20ms", "--workers=2"}),
        stub_(v1::AttentionService::NewStub(
            grpc::CreateChannel(process_.address(), grpc::InsecureChannelCredentials()))) {}

  v1::AttentionService::Stub& stub() { return *stub_; }
  process::ServerProcess& process() { return process_; }

  v1::Session Create(const std::string& id, v1::Durability durability) {
    grpc::ClientContext context;
    v1::CreateSessionRequest request;
    request.set_session_id(id);
    *request.mutable_config() = Config(durability);
    v1::Session session;
    const grpc::Status status = stub_->CreateSession(&context, request, &session);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return session;
  }
  v1::Session Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session_id(id);
    v1::Session session;
    const grpc::Status status = stub_->GetSession(&context, request, &session);
    EXPECT_TRUE(status.ok()) << id << ": " << status.error_message();
    return session;
  }
  // The bits of all layers' answers.
  std::vector<std::string> Outputs(const std::string& id) {
    std::vector<std::string> outputs;
    for (int layer = 0; layer < kLayers; ++layer) {
      grpc::ClientContext context;
      v1::AttendRequest request;
      request.set_session_id(id);
      request.set_layer(layer);
      *request.mutable_queries() = Rows(0, 5, 99);
      v1::AttendResponse response;
      const grpc::Status status = stub_->Attend(&context, request, &response);
      EXPECT_TRUE(status.ok()) << id << ": " << status.error_message();
      outputs.push_back(response.answer().outputs().data());
    }
    return outputs;
  }

 private:
  process::ServerProcess process_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

// A session and what its client knows of it.
struct Client {
  std::string id;
  v1::Durability durability = v1::LOGGED;
  v1::Session session = {};
  std::int64_t acknowledged = 0;
  std::int64_t durable = 0;
  v1::AppendRequest unanswered = {};  // the message that was under way when the server died
};

// Appends until the server is gone.
void Load(v1::AttentionService::Stub& stub, Client& client, std::uint32_t seed) {
  std::mt19937 random(seed);
  while (true) {
    const auto count = static_cast<std::int64_t>(1 + random() % kMostTokens);
    client.unanswered = Append(client.session, client.acknowledged, count);
    grpc::ClientContext context;
    v1::AppendResponse response;
    const grpc::Status status = stub.Append(&context, client.unanswered, &response);
    if (!status.ok()) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
      return;
    }
    EXPECT_FALSE(response.replayed());
    client.acknowledged += count;
    client.durable = response.positions(0).durable_position();
    EXPECT_LE(client.durable, client.acknowledged);
  }
}

// The client finds its session after a restart, and goes on from what is there.
void Resume(RunningServer& server, Client& client) {
  const std::int64_t sent = client.acknowledged + client.unanswered.tokens(0).keys().shape(0);
  const v1::Session found = server.Get(client.id);
  for (const std::int64_t position : found.layer_positions()) {
    EXPECT_EQ(position, found.position()) << "a message counts in all layers or in none";
  }
  if (client.durability == v1::LOGGED) {
    EXPECT_EQ(found.generation(), client.session.generation());
    EXPECT_GE(found.position(), client.acknowledged);
    EXPECT_TRUE(found.position() == client.acknowledged || found.position() == sent);
    // Whether it was applied or not, a retry makes it count once.
    grpc::ClientContext context;
    v1::AppendResponse response;
    const grpc::Status status = server.stub().Append(&context, client.unanswered, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.replayed(), found.position() == sent);
    EXPECT_EQ(server.Get(client.id).position(), sent);
    client.acknowledged = sent;
  } else {
    EXPECT_NE(found.generation(), client.session.generation());
    EXPECT_GE(found.position(), client.durable);
    EXPECT_LE(found.position(), sent);
    client.acknowledged = found.position();
  }
  client.session = server.Get(client.id);
}

TEST(Kill, NoAcknowledgedTokenIsLostAndNoneCountsTwice) {
  std::string directory = std::filesystem::temp_directory_path() / "attnd_kill.XXXXXX";
  ASSERT_NE(mkdtemp(directory.data()), nullptr);
  std::mt19937 random(1);
  std::array<Client, 2> clients = {Client{.id = "logged", .durability = v1::LOGGED},
                                   Client{.id = "checkpointed", .durability = v1::CHECKPOINTED}};
  auto server = std::make_unique<RunningServer>(directory);
  for (Client& client : clients) client.session = server->Create(client.id, client.durability);
  const int rounds = KillRounds();
  for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
    std::vector<std::thread> load;
    for (Client& client : clients) {
      load.emplace_back([&server, &client, seed = random()] {
        Load(server->stub(), client, static_cast<std::uint32_t>(seed));
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 150));
    server->process().Kill();
    for (std::thread& thread : load) thread.join();
    server = nullptr;
    server = std::make_unique<RunningServer>(directory);
    for (Client& client : clients) {
      Resume(*server, client);
      const v1::Session model = server->Create(client.id + kModel, v1::EPHEMERAL);
      for (std::int64_t at = 0; at < client.acknowledged; at += 4096) {
        grpc::ClientContext context;
        v1::AppendResponse response;
        const v1::AppendRequest request =
            Append(model, at, std::min<std::int64_t>(client.acknowledged - at, 4096));
        const grpc::Status status = server->stub().Append(&context, request, &response);
        ASSERT_TRUE(status.ok()) << status.error_message();
      }
      EXPECT_EQ(server->Outputs(client.id), server->Outputs(model.session_id()))
          << client.id << " in round " << round << " at " << client.acknowledged;
    }
  }
  for (const Client& client : clients) {
    std::printf("%s: %lld tokens\n", client.id.c_str(),
                static_cast<long long>(client.acknowledged));
    EXPECT_GT(client.acknowledged, 100 * rounds) << "there was little load";
  }
  EXPECT_EQ(server->process().Stop(), 0);
  server = nullptr;
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace attnd
