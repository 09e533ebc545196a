#include "client/client.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/client/session_fixture.h"

namespace attnd::client {
namespace {

class ClientCalls : public SessionFixture {};

TEST(ClientIds, AreNewAndValid) {
  std::set<std::string> ids;
  for (int i = 0; i < 100; ++i) {
    const std::string id = NewSessionId();
    EXPECT_EQ(id.size(), 32U);
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_TRUE(ids.insert(id).second);
  }
}

TEST(ClientConnect, SaysThatTheServerCannotBeReached) {
  ClientOptions options;
  options.target = "127.0.0.1:1";
  options.clock = std::make_shared<FakeClock>();
  options.retry.max_attempts = 2;
  const auto client = Client::Connect(options);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(AdviceFor(client.status()), "");
}

TEST_F(ClientCalls, CreateIsRetriedWithTheSameId) {
  Connect();
  server_.DropNextAnswers(1);
  const auto session = client_->CreateSession(Config());
  ASSERT_TRUE(session.ok()) << session.status();
  const auto list = client_->ListSessions();
  ASSERT_TRUE(list.ok());
  ASSERT_EQ(list->sessions_size(), 1);
  EXPECT_EQ(list->sessions(0).session_id(), (*session)->id());
}

TEST_F(ClientCalls, AnIdInUseWithAnotherConfigurationIsRefused) {
  Connect();
  ASSERT_TRUE(client_->CreateSession(Config(), "mine").ok());
  EXPECT_TRUE(client_->CreateSession(Config(), "mine").ok());
  const auto other = client_->CreateSession(Config(2), "mine");
  EXPECT_EQ(ErrorReasonOf(other.status()), "SESSION_EXISTS");
}

TEST_F(ClientCalls, EveryCallOfASessionCarriesItsHeader) {
  Connect();
  const auto session = client_->CreateSession(Config(), "routed");
  ASSERT_TRUE(session.ok());
  const TestTokens data(0, 3);
  EXPECT_TRUE((*session)->Append(data.tokens()).ok());
  EXPECT_TRUE((*session)->Attend(0, data.query_tensor()).ok());
  EXPECT_TRUE((*session)->Step(data.tokens(), data.query_tensor()).ok());
  EXPECT_TRUE((*session)->Refresh().ok());
  EXPECT_TRUE((*session)->OpenStream().value()->Attend(0, data.query_tensor()).get().ok());
  EXPECT_TRUE(client_->GetSession("routed").ok());
  EXPECT_TRUE(client_->UpdateSession("routed", {absl::Seconds(90), std::nullopt}).ok());
  EXPECT_FALSE(client_->FlushSession("routed").ok());
  EXPECT_FALSE((*session)->Flush().ok());
  EXPECT_TRUE(client_->DeleteSession("routed").ok());
  // Create, Append, Attend, Step, Refresh, Stream, Get, Update, Flush twice, Delete.
  EXPECT_EQ(server_.seen().session_headers.count("routed"), 11U);
  EXPECT_EQ(server_.seen().session_headers.size(), 11U);
}

TEST_F(ClientCalls, UpdateSendsOnlyWhatIsGiven) {
  Connect();
  ASSERT_TRUE(client_->CreateSession(Config(), "s").ok());
  const auto timed = client_->UpdateSession("s", {absl::Milliseconds(1500), std::nullopt});
  ASSERT_TRUE(timed.ok());
  EXPECT_EQ(timed->config().time_to_live().seconds(), 1);
  EXPECT_EQ(timed->config().time_to_live().nanos(), 500'000'000);
  SessionUpdate update;
  update.labels.emplace().emplace("team", "a");
  const auto labelled = client_->UpdateSession("s", update);
  ASSERT_TRUE(labelled.ok());
  EXPECT_EQ(labelled->config().labels().at("team"), "a");
  EXPECT_EQ(labelled->config().time_to_live().seconds(), 1);
}

TEST_F(ClientCalls, ListsPageByPage) {
  Connect();
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(client_->CreateSession(Config(), id).ok());
  ListOptions options;
  options.page_size = 2;
  const auto first = client_->ListSessions(options);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->sessions_size(), 2);
  options.page_token = first->next_page_token();
  const auto second = client_->ListSessions(options);
  ASSERT_EQ(second->sessions_size(), 1);
  EXPECT_EQ(second->sessions(0).session_id(), "c");
}

TEST_F(ClientCalls, UnknownSessionsAndEmptyIds) {
  Connect();
  EXPECT_EQ(ErrorReasonOf(client_->AttachSession("nobody").status()), "UNKNOWN");
  EXPECT_EQ(client_->GetSession("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->DeleteSession("").code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientCalls, FlushSaysUpToWhereEachLayerIsDurable) {
  Connect();
  v1::SessionConfig config = Config(2);
  config.set_durability(v1::CHECKPOINTED);
  const auto session = client_->CreateSession(config, "s");
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->Append(TestTokens(0, 5).tokens(1)).ok());
  EXPECT_EQ(client_->GetSession("s")->durable_layer_positions(1), 0);
  server_.DropNextAnswers(1);
  const auto flushed = client_->FlushSession("s");
  ASSERT_TRUE(flushed.ok()) << flushed.status();
  ASSERT_EQ(flushed->positions_size(), 2);
  EXPECT_EQ(flushed->positions(0).durable_position(), 0);
  EXPECT_EQ(flushed->positions(1).durable_position(), 5);
  EXPECT_EQ((*client_->AttachSession("s"))->durable_position(1), 5);

  EXPECT_EQ(client_->FlushSession("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReasonOf(client_->FlushSession("nobody").status()), "UNKNOWN");
  ASSERT_TRUE(client_->CreateSession(Config(), "ephemeral").ok());
  EXPECT_EQ(ErrorReasonOf(client_->FlushSession("ephemeral").status()), "UNSUPPORTED");
}

TEST_F(ClientCalls, AttachTakesOverGenerationAndPositions) {
  CreateSession(2);
  ASSERT_TRUE(session_->Append(TestTokens(0, 5).tokens(1)).ok());
  const auto attached = client_->AttachSession(session_->id());
  ASSERT_TRUE(attached.ok());
  EXPECT_EQ((*attached)->generation(), session_->generation());
  EXPECT_EQ((*attached)->position(0), 0);
  EXPECT_EQ((*attached)->position(1), 5);
  EXPECT_TRUE((*attached)->Append(TestTokens(5, 2).tokens(1)).ok());
}

}  // namespace
}  // namespace attnd::client
