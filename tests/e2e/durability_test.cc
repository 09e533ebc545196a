// Sessions that outlive their server: what comes back after an orderly stop, whatever the engine,
// and what the contract says of it.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/server/store/store_directory.h"

namespace attnd::e2e {
namespace {

constexpr Shape kShape = {2, 4, 16, 16};
constexpr std::int64_t kTokens = 700;

class Durability : public ::testing::Test {
 protected:
  Durability() {
    options_.data_dir = directory_.path();
    options_.checkpoint_interval = absl::Hours(1);
    Start();
  }

  void Start() { server_ = std::make_unique<TestServer>(options_); }
  // An orderly stop and another server on the same store.
  void Restart() {
    server_ = nullptr;
    Start();
  }
  v1::AttentionService::Stub& stub() { return server_->stub(); }

  static std::vector<v1::LayerGroup> Groups() {
    return {ExactGroup(kShape),
            ExactGroup(kShape, v1::BF16),
            LinearGroup(kShape),
            LinearGroup(kShape, v1::FAVOR_POSITIVE),
            LinearGroup(kShape, v1::EFFICIENT),
            Windowed(ExactGroup(kShape), 200),
            Windowed(LinearGroup(kShape), 256),
            GatedGroup(kShape, v1::UpdateRule::PER_TOKEN, true),
            KdeGroup(kShape, v1::KdeConfig::INDEX),
            KdeGroup(kShape, v1::KdeConfig::CERTIFIED)};
  }
  static v1::LayerGroup Windowed(v1::LayerGroup group, std::int64_t window) {
    group.set_window_tokens(window);
    return group;
  }
  static v1::SessionConfig Config(const std::vector<v1::LayerGroup>& groups,
                                  v1::Durability durability) {
    v1::SessionConfig config = ConfigOf(groups);
    config.set_durability(durability);
    return config;
  }

  v1::Session Get(const std::string& id) {
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session_id(id);
    v1::Session session;
    EXPECT_TRUE(Succeeded(stub().GetSession(&context, request, &session)));
    return session;
  }
  grpc::Status GetStatus(const std::string& id) {
    grpc::ClientContext context;
    v1::GetSessionRequest request;
    request.set_session_id(id);
    v1::Session session;
    return stub().GetSession(&context, request, &session);
  }
  v1::FlushSessionResponse Flush(const std::string& id) {
    grpc::ClientContext context;
    v1::FlushSessionRequest request;
    request.set_session_id(id);
    v1::FlushSessionResponse response;
    EXPECT_TRUE(Succeeded(stub().FlushSession(&context, request, &response)));
    return response;
  }
  // The stored bits of an answer of a layer.
  std::string Outputs(const std::string& id, std::int32_t layer) {
    grpc::ClientContext context;
    v1::AttendRequest request;
    request.set_session_id(id);
    request.set_layer(layer);
    *request.mutable_queries() = QueryTensor(kShape, RandomQueries(kShape, 9, 5), 0, 9);
    v1::AttendResponse response;
    EXPECT_TRUE(Succeeded(stub().Attend(&context, request, &response))) << layer;
    return response.answer().outputs().data();
  }
  Reply<v1::AppendResponse> Append(const v1::AppendRequest& request) {
    Reply<v1::AppendResponse> reply;
    grpc::ClientContext context;
    reply.status = stub().Append(&context, request, &reply.value);
    return reply;
  }

  server::StoreDirectory directory_;
  server::Options options_ = TestOptions();
  std::unique_ptr<TestServer> server_;
};

Tokens TokensOf(const v1::LayerGroup& group, std::uint32_t seed) {
  Tokens tokens = RandomTokens(kShape, kTokens, seed);
  AddGates(group, seed, tokens);
  tokens.mask.assign(static_cast<std::size_t>(kTokens), 1);
  for (std::size_t i = 3; i < tokens.mask.size(); i += 17) tokens.mask[i] = 0;
  return tokens;
}

// Tokens [first, first + count) of all layers.
v1::AppendRequest AppendAll(const std::string& id, std::uint64_t generation,
                            const std::vector<v1::LayerGroup>& groups, std::int64_t first,
                            std::int64_t count) {
  v1::AppendRequest request;
  request.set_session_id(id);
  request.set_generation(generation);
  for (std::size_t layer = 0; layer < groups.size(); ++layer) {
    *request.add_tokens() = Slice(TokensOf(groups[layer], static_cast<std::uint32_t>(layer)), first,
                                  count, static_cast<std::int32_t>(layer));
  }
  return request;
}

TEST_F(Durability, EveryEngineComesBackWithItsBits) {
  const std::vector<v1::LayerGroup> groups = Groups();
  for (const v1::Durability durability : {v1::CHECKPOINTED, v1::LOGGED}) {
    const std::string id = v1::Durability_Name(durability);
    const TestSession session(stub(), id, Config(groups, durability));
    std::int64_t position = 0;
    for (const std::int64_t count : {1, 62, 1, 1, 127, 300, 100}) {
      const v1::AppendRequest more = AppendAll(id, session.generation(), groups, position, count);
      ASSERT_TRUE(Succeeded(Append(more).status));
      position += count;
      // One that gets all tokens at once, and lives in memory only.
      const TestSession model(stub(), id + "-model", ConfigOf(groups));
      const v1::AppendRequest all = AppendAll(model.id(), model.generation(), groups, 0, position);
      ASSERT_TRUE(Succeeded(Append(all).status));
      std::vector<std::string> expected;
      for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(groups.size()); ++layer) {
        expected.push_back(Outputs(model.id(), layer));
      }
      Restart();
      const v1::Session found = Get(id);
      EXPECT_EQ(found.generation(), session.generation());
      EXPECT_EQ(found.position(), position);
      EXPECT_EQ(found.durable_layer_positions(0), position);
      for (std::size_t layer = 0; layer < groups.size(); ++layer) {
        EXPECT_EQ(Outputs(id, static_cast<std::int32_t>(layer)), expected[layer])
            << id << " layer " << layer << " at " << position;
      }
      EXPECT_TRUE(FailedWith(GetStatus(model.id()), grpc::StatusCode::NOT_FOUND, v1::UNKNOWN));
    }
  }
}

TEST_F(Durability, RememberedMessagesAnswerReplayedAfterARestart) {
  const std::vector<v1::LayerGroup> groups = {LinearGroup(kShape), ExactGroup(kShape)};
  const TestSession session(stub(), "s", Config(groups, v1::LOGGED));
  const v1::AppendRequest first = AppendAll("s", session.generation(), groups, 0, 100);
  ASSERT_TRUE(Succeeded(Append(first).status));
  const Tokens tokens = TokensOf(groups[1], 1);
  v1::StepRequest step = session.StepOf(tokens, RandomQueries(kShape, kTokens, 3), 100, 20);
  step.mutable_tokens()->set_layer(1);
  const auto answered = session.Step(step);
  ASSERT_TRUE(Succeeded(answered.status));
  EXPECT_EQ(answered->durable_position(), 120);
  for (int life = 0; life < 2; ++life) {
    Restart();
    const auto replayed = Append(first);
    ASSERT_TRUE(Succeeded(replayed.status));
    EXPECT_TRUE(replayed->replayed());
    EXPECT_EQ(replayed->positions(1).durable_position(), 100);
    v1::StepResponse again;
    grpc::ClientContext context;
    ASSERT_TRUE(Succeeded(stub().Step(&context, step, &again)));
    EXPECT_TRUE(again.replayed());
    EXPECT_EQ(again.answer().outputs().data(), answered->answer().outputs().data());
    EXPECT_EQ(Get("s").layer_positions(1), 120);
  }
}

TEST_F(Durability, AcknowledgementsSayWhatIsDurable) {
  const std::vector<v1::LayerGroup> groups = {LinearGroup(kShape)};
  const TestSession checkpointed(stub(), "c", Config(groups, v1::CHECKPOINTED));
  const TestSession logged(stub(), "l", Config(groups, v1::LOGGED));
  const TestSession ephemeral(stub(), "e", ConfigOf(groups));
  const auto durable = [&](const TestSession& session, std::int64_t first) {
    const auto reply = Append(AppendAll(session.id(), session.generation(), groups, first, 10));
    EXPECT_TRUE(Succeeded(reply.status));
    return reply->positions(0).durable_position();
  };
  EXPECT_EQ(durable(checkpointed, 0), 0);
  EXPECT_EQ(durable(logged, 0), 10);
  EXPECT_EQ(durable(ephemeral, 0), 0);
  EXPECT_EQ(Flush("c").positions(0).durable_position(), 10);
  EXPECT_EQ(durable(checkpointed, 10), 10);
  EXPECT_EQ(Get("c").durable_layer_positions(0), 10);
  grpc::ClientContext context;
  v1::FlushSessionRequest request;
  request.set_session_id("e");
  v1::FlushSessionResponse response;
  EXPECT_TRUE(FailedWith(stub().FlushSession(&context, request, &response),
                         grpc::StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
}

TEST_F(Durability, DeletedSessionsStayDeletedAndTheirIdIsFree) {
  const std::vector<v1::LayerGroup> groups = {ExactGroup(kShape)};
  const v1::SessionConfig config = Config(groups, v1::LOGGED);
  std::uint64_t generation = 0;
  {
    const TestSession session(stub(), "s", config);
    generation = session.generation();
    ASSERT_TRUE(Succeeded(Append(AppendAll("s", generation, groups, 0, 200)).status));
    ASSERT_TRUE(Succeeded(session.Delete()));
  }
  Restart();
  EXPECT_TRUE(FailedWith(GetStatus("s"), grpc::StatusCode::NOT_FOUND, v1::DELETED));
  const TestSession session(stub(), "s", config);
  EXPECT_NE(session.generation(), generation);
  EXPECT_EQ(session.Get()->position(), 0);
  Restart();
  // Deleted while it is in the store only.
  grpc::ClientContext context;
  v1::DeleteSessionRequest request;
  request.set_session_id("s");
  v1::DeleteSessionResponse response;
  ASSERT_TRUE(Succeeded(stub().DeleteSession(&context, request, &response)));
  EXPECT_TRUE(FailedWith(GetStatus("s"), grpc::StatusCode::NOT_FOUND, v1::DELETED));
}

// The removal of the first session was once queued after the second one had been written.
TEST_F(Durability, AnIdThatIsUsedAgainAtOnceKeepsItsNewSession) {
  const std::vector<v1::LayerGroup> groups = {ExactGroup(kShape)};
  for (int round = 0; round < 5; ++round) {
    {
      const TestSession session(stub(), "s", Config(groups, v1::LOGGED));
      ASSERT_TRUE(Succeeded(Append(AppendAll("s", session.generation(), groups, 0, 70)).status));
      ASSERT_TRUE(Succeeded(session.Delete()));
    }
    const TestSession session(stub(), "s", Config(groups, v1::LOGGED));
    ASSERT_TRUE(Succeeded(Append(AppendAll("s", session.generation(), groups, 0, 30)).status));
    Restart();
    EXPECT_EQ(Get("s").generation(), session.generation());
    EXPECT_EQ(Get("s").position(), 30);
    const TestSession found(stub(), "s", Config(groups, v1::LOGGED));
    ASSERT_TRUE(Succeeded(found.Delete()));
  }
}

TEST_F(Durability, ADamagedSessionIsNotServedCanBeDeletedAndHarmsNoOther) {
  const std::vector<v1::LayerGroup> groups = {ExactGroup(kShape)};
  for (const std::string id : {"damaged", "whole"}) {
    const TestSession session(stub(), id, Config(groups, v1::LOGGED));
    ASSERT_TRUE(Succeeded(Append(AppendAll(id, session.generation(), groups, 0, 200)).status));
  }
  server_ = nullptr;
  {
    // One bit of one record of one session.
    const auto store = directory_.OpenOrDie();
    std::string key;
    std::string value;
    ASSERT_TRUE(store
                    ->Scan("g", "h",
                           [&](std::string_view k, std::string_view v) {
                             key = k;
                             value = v;
                             return false;
                           })
                    .ok());
    ASSERT_FALSE(key.empty());
    value[value.size() / 2] = static_cast<char>(value[value.size() / 2] ^ 1);
    server::WriteBatch batch;
    batch.Put(key, value);
    ASSERT_TRUE(store->Apply(batch, server::Sync::kNow).ok());
  }
  Start();
  int damaged = 0;
  for (const std::string id : {"damaged", "whole"}) {
    const grpc::Status status = GetStatus(id);
    if (status.ok()) {
      EXPECT_EQ(Get(id).position(), 200);
      continue;
    }
    ++damaged;
    EXPECT_TRUE(FailedWith(status, grpc::StatusCode::DATA_LOSS, v1::DAMAGED));
    grpc::ClientContext context;
    v1::DeleteSessionRequest request;
    request.set_session_id(id);
    v1::DeleteSessionResponse response;
    EXPECT_TRUE(Succeeded(stub().DeleteSession(&context, request, &response)));
    const TestSession again(stub(), id, Config(groups, v1::LOGGED));
    EXPECT_EQ(again.Get()->position(), 0);
  }
  EXPECT_EQ(damaged, 1);
}

TEST_F(Durability, AnIdInTheStoreIsInUse) {
  { const TestSession session(stub(), "s", Config({ExactGroup(kShape)}, v1::LOGGED)); }
  Restart();
  grpc::ClientContext context;
  v1::CreateSessionRequest request;
  request.set_session_id("s");
  *request.mutable_config() = Config({LinearGroup(kShape)}, v1::LOGGED);
  v1::Session created;
  EXPECT_TRUE(FailedWith(stub().CreateSession(&context, request, &created),
                         grpc::StatusCode::ALREADY_EXISTS, v1::SESSION_EXISTS));
  const TestSession same(stub(), "s", Config({ExactGroup(kShape)}, v1::LOGGED));
}

TEST_F(Durability, ListsHaveSessionsThatAreNotInMemory) {
  const std::vector<v1::LayerGroup> groups = {LinearGroup(kShape)};
  for (const std::string id : {"a", "b", "c"}) {
    const TestSession session(stub(), id, Config(groups, v1::CHECKPOINTED));
    ASSERT_TRUE(Succeeded(Append(AppendAll(id, session.generation(), groups, 0, 70)).status));
  }
  Restart();
  EXPECT_EQ(Get("b").position(), 70);
  std::vector<std::string> ids;
  std::vector<bool> loaded;
  v1::ListSessionsRequest request;
  request.set_page_size(2);
  do {
    grpc::ClientContext context;
    v1::ListSessionsResponse response;
    ASSERT_TRUE(Succeeded(stub().ListSessions(&context, request, &response)));
    for (const v1::Session& session : response.sessions()) {
      ids.push_back(session.session_id());
      loaded.push_back(session.loaded());
      EXPECT_EQ(session.position(), 70);
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(ids, (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(loaded, (std::vector<bool>{false, true, false}));
}

TEST_F(Durability, UpdatedLabelsAndTimeToLiveLast) {
  const TestSession session(stub(), "s", Config({LinearGroup(kShape)}, v1::CHECKPOINTED));
  grpc::ClientContext context;
  v1::UpdateSessionRequest request;
  request.set_session_id("s");
  request.mutable_time_to_live()->set_seconds(77);
  (*request.mutable_labels()->mutable_labels())["a"] = "b";
  v1::Session updated;
  ASSERT_TRUE(Succeeded(stub().UpdateSession(&context, request, &updated)));
  Restart();
  const v1::Session found = Get("s");
  EXPECT_EQ(found.config().time_to_live().seconds(), 77);
  EXPECT_EQ(found.config().labels().at("a"), "b");
}

TEST_F(Durability, WithoutAStoreSessionsAreEphemeral) {
  server_ = nullptr;
  options_.data_dir = "";
  Start();
  grpc::ClientContext context;
  v1::CreateSessionRequest request;
  request.set_session_id("s");
  *request.mutable_config() = Config({ExactGroup(kShape)}, v1::LOGGED);
  v1::Session created;
  EXPECT_TRUE(FailedWith(stub().CreateSession(&context, request, &created),
                         grpc::StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
}

}  // namespace
}  // namespace attnd::e2e
