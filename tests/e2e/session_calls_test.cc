// Creating, reading, listing, changing and deleting sessions, as the contract has it.
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape;

class SessionCalls : public ::testing::Test {
 protected:
  Reply<v1::Session> Create(const std::string& id, const v1::SessionConfig& config) {
    v1::CreateSessionRequest request;
    request.set_session_id(id);
    *request.mutable_config() = config;
    Reply<v1::Session> reply;
    reply.status = server_.stub().CreateSession(Context().get(), request, &reply.value);
    return reply;
  }
  Reply<v1::ListSessionsResponse> List(const v1::ListSessionsRequest& request) {
    Reply<v1::ListSessionsResponse> reply;
    reply.status = server_.stub().ListSessions(Context().get(), request, &reply.value);
    return reply;
  }
  Reply<v1::Session> Update(const v1::UpdateSessionRequest& request) {
    Reply<v1::Session> reply;
    reply.status = server_.stub().UpdateSession(Context().get(), request, &reply.value);
    return reply;
  }

  TestServer server_;
};

TEST_F(SessionCalls, CreateFillsInDefaultsAndDrawsAGeneration) {
  v1::SessionConfig config;
  config.add_layer_groups()->mutable_exact();
  config.mutable_layer_groups(0)->set_key_dim(64);
  v1::LayerGroup& linear = *config.add_layer_groups();
  linear.set_count(3);
  linear.set_kv_heads(2);
  linear.set_query_heads(4);
  linear.set_key_dim(8);
  linear.mutable_linear()->mutable_feature_map()->set_kind(v1::RELU);

  const Reply<v1::Session> session = Create("defaults", config);
  ASSERT_TRUE(Succeeded(session.status));
  EXPECT_EQ(session->session_id(), "defaults");
  EXPECT_NE(session->generation(), 0U);
  EXPECT_EQ(session->layer_positions_size(), 4);
  EXPECT_EQ(session->position(), 0);
  EXPECT_GT(session->state_bytes(), 0);
  EXPECT_GT(session->create_time().seconds(), 0);
  EXPECT_EQ(session->config().time_to_live().seconds(), 3600);
  EXPECT_GT(session->expires_in().seconds(), 3590);
  const v1::LayerGroup& exact = session->config().layer_groups(0);
  EXPECT_EQ(exact.count(), 1);
  EXPECT_EQ(exact.kv_heads(), 1);
  EXPECT_EQ(exact.query_heads(), 1);
  EXPECT_EQ(exact.value_dim(), 64);
  EXPECT_EQ(exact.scale(), 0.125F);
  EXPECT_EQ(exact.exact().storage(), v1::F32);
  EXPECT_EQ(session->config().layer_groups(1).scale(), 1.0F);
  EXPECT_EQ(session->config().layer_groups(1).linear().normalization(), v1::NORMALIZED);
  EXPECT_EQ(session->config().layer_groups(1).linear().guard().policy(),
            v1::DenominatorGuard::STRICT);
  EXPECT_EQ(session->config().layer_groups(1).linear().guard().epsilon(), 1e-6F);
  ASSERT_EQ(session->engine_facts_size(), 2);
  EXPECT_EQ(session->engine_facts(0).engine(), "exact");
  EXPECT_EQ(session->engine_facts(1).engine(), "linear");
  EXPECT_EQ(session->engine_facts(1).feature_dim(), 8);
}

TEST_F(SessionCalls, CreateAgainIsARetryOrAConflict) {
  v1::SessionConfig config = ConfigOf({ExactGroup(kShape)});
  const Reply<v1::Session> first = Create("one", config);
  ASSERT_TRUE(Succeeded(first.status));
  const TestSession session(server_.stub(), "one", config);
  ASSERT_TRUE(Succeeded(session.Append(RandomTokens(kShape, 3, 1), 0, 3).status));

  // Mutable fields and defaults written out make no difference.
  (*config.mutable_labels())["color"] = "red";
  config.mutable_time_to_live()->set_seconds(5);
  config.mutable_layer_groups(0)->set_count(1);
  const Reply<v1::Session> second = Create("one", config);
  ASSERT_TRUE(Succeeded(second.status));
  EXPECT_EQ(second->generation(), first->generation());
  EXPECT_EQ(second->position(), 3);
  EXPECT_TRUE(second->config().labels().empty());

  config.set_seed(7);
  EXPECT_TRUE(
      FailedWith(Create("one", config).status, StatusCode::ALREADY_EXISTS, v1::SESSION_EXISTS));
  EXPECT_TRUE(FailedWith(Create("one", ConfigOf({LinearGroup(kShape)})).status,
                         StatusCode::ALREADY_EXISTS, v1::SESSION_EXISTS));
  EXPECT_EQ(session.Get()->position(), 3);
}

TEST_F(SessionCalls, CreateWithoutAnIdMakesOne) {
  const Reply<v1::Session> a = Create("", ConfigOf({ExactGroup(kShape)}));
  const Reply<v1::Session> b = Create("", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(a.status));
  ASSERT_TRUE(Succeeded(b.status));
  EXPECT_NE(a->session_id(), b->session_id());
  EXPECT_NE(a->generation(), b->generation());
}

TEST_F(SessionCalls, ASecondLifeOfAnIdHasAnotherGeneration) {
  const TestSession first(server_.stub(), "again", ConfigOf({ExactGroup(kShape)}));
  const Tokens tokens = RandomTokens(kShape, 4, 1);
  ASSERT_TRUE(Succeeded(first.Append(tokens, 0, 4).status));
  ASSERT_TRUE(Succeeded(first.Delete()));
  const TestSession second(server_.stub(), "again", ConfigOf({ExactGroup(kShape)}));
  EXPECT_NE(second.generation(), first.generation());
  // A late retry of the first life must not enter the second one.
  EXPECT_TRUE(
      FailedWith(first.Append(tokens, 0, 4).status, StatusCode::ABORTED, v1::STALE_GENERATION));
  EXPECT_EQ(second.Get()->position(), 0);
}

TEST_F(SessionCalls, DeleteIsSafeToRetryAndLeavesAReason) {
  const TestSession session(server_.stub(), "gone", ConfigOf({ExactGroup(kShape)}));
  EXPECT_TRUE(Succeeded(session.Delete()));
  EXPECT_TRUE(Succeeded(session.Delete()));
  EXPECT_TRUE(FailedWith(session.Get().status, StatusCode::NOT_FOUND, v1::DELETED));
  EXPECT_TRUE(FailedWith(session.Append(RandomTokens(kShape, 1, 1), 0, 1).status,
                         StatusCode::NOT_FOUND, v1::DELETED));
  v1::DeleteSessionRequest request;
  request.set_session_id("never-seen");
  v1::DeleteSessionResponse response;
  EXPECT_TRUE(FailedWith(server_.stub().DeleteSession(Context().get(), request, &response),
                         StatusCode::NOT_FOUND, v1::UNKNOWN));
}

TEST_F(SessionCalls, ListPagesByIdAndFiltersByLabels) {
  for (int i = 0; i < 25; ++i) {
    v1::SessionConfig config = ConfigOf({ExactGroup(kShape)});
    (*config.mutable_labels())["parity"] = i % 2 == 0 ? "even" : "odd";
    if (i % 3 == 0) (*config.mutable_labels())["third"] = "yes";
    const std::string id = "s" + std::to_string(100 + (i * 7) % 25);
    ASSERT_TRUE(Succeeded(Create(id, config).status));
  }
  v1::ListSessionsRequest request;
  request.set_page_size(10);
  std::vector<std::string> ids;
  std::vector<int> sizes;
  do {
    const Reply<v1::ListSessionsResponse> page = List(request);
    ASSERT_TRUE(Succeeded(page.status));
    for (const v1::Session& session : page->sessions()) ids.push_back(session.session_id());
    sizes.push_back(page->sessions_size());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty() && sizes.size() < 10);
  EXPECT_EQ(sizes, (std::vector<int>{10, 10, 5}));
  ASSERT_EQ(ids.size(), 25U);
  for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], "s" + std::to_string(100 + i));

  request.Clear();
  request.set_page_size(13);
  (*request.mutable_labels())["parity"] = "even";
  Reply<v1::ListSessionsResponse> page = List(request);
  EXPECT_EQ(page->sessions_size(), 13);
  EXPECT_EQ(page->next_page_token(), "") << "a page that holds the last session is the last page";
  (*request.mutable_labels())["third"] = "yes";
  page = List(request);
  EXPECT_EQ(page->sessions_size(), 5);
  for (const v1::Session& session : page->sessions()) {
    EXPECT_EQ(session.config().labels().at("parity"), "even");
    EXPECT_EQ(session.config().labels().at("third"), "yes");
  }

  request.Clear();
  request.set_page_size(-1);
  EXPECT_TRUE(FailedWith(List(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request.set_page_size(1001);
  EXPECT_TRUE(FailedWith(List(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
}

TEST_F(SessionCalls, UpdateChangesWhatIsSetOnly) {
  v1::SessionConfig config = ConfigOf({ExactGroup(kShape)});
  (*config.mutable_labels())["a"] = "1";
  const TestSession session(server_.stub(), "mutable", config);
  v1::UpdateSessionRequest request;
  request.set_session_id("mutable");
  request.mutable_time_to_live()->set_seconds(120);
  Reply<v1::Session> updated = Update(request);
  ASSERT_TRUE(Succeeded(updated.status));
  EXPECT_EQ(updated->config().time_to_live().seconds(), 120);
  EXPECT_EQ(updated->config().labels().at("a"), "1");

  request.clear_time_to_live();
  request.mutable_labels();  // set and empty: removes all
  updated = Update(request);
  EXPECT_EQ(updated->config().time_to_live().seconds(), 120);
  EXPECT_TRUE(updated->config().labels().empty());

  request.mutable_time_to_live()->set_seconds(std::int64_t{1} << 40);
  EXPECT_EQ(Update(request)->config().time_to_live().seconds(), 7 * 24 * 3600);
  request.mutable_time_to_live()->set_seconds(0);
  EXPECT_TRUE(FailedWith(Update(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request.clear_time_to_live();
  (*request.mutable_labels()->mutable_labels())[std::string(64, 'k')] = "v";
  EXPECT_TRUE(FailedWith(Update(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request.Clear();
  request.set_session_id("other");
  EXPECT_TRUE(FailedWith(Update(request).status, StatusCode::NOT_FOUND, v1::UNKNOWN));
}

TEST_F(SessionCalls, IdsThatAreNotAllowedAreRefusedAtCreation) {
  for (const std::string& id : {std::string("a/b"), std::string("a b"), std::string("\n"),
                                std::string("\xC3\xA4"), std::string(129, 'x')}) {
    EXPECT_TRUE(FailedWith(Create(id, ConfigOf({ExactGroup(kShape)})).status,
                           StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  }
  EXPECT_TRUE(Succeeded(Create(std::string(128, 'x'), ConfigOf({ExactGroup(kShape)})).status));
}

// The client got RESOURCE_EXHAUSTED for the size of the trailers in the place of NOT_FOUND.
TEST_F(SessionCalls, AnIdThatIsFarTooLongIsUnknownInAShortMessage) {
  v1::GetSessionRequest request;
  request.set_session_id(std::string(100'000, 'x') + "\n");
  v1::Session session;
  const grpc::Status status = server_.stub().GetSession(Context().get(), request, &session);
  EXPECT_TRUE(FailedWith(status, StatusCode::NOT_FOUND, v1::UNKNOWN));
  EXPECT_LT(status.error_message().size(), 1000U);
}

// The list of all positions made the trailers larger than gRPC clients accept, which then saw
// RESOURCE_EXHAUSTED instead of the reason.
TEST(DeepSessions, AStaleGenerationOfASessionWithManyLayersIsToldAsSuch) {
  server::Options options = TestOptions();
  options.max_layers = 2000;
  TestServer server(options);
  v1::LayerGroup group = ExactGroup({.key_dim = 4, .value_dim = 4});
  group.set_count(2000);
  const TestSession session(server.stub(), "deep", ConfigOf({group}));
  v1::AppendRequest request =
      session.AppendOf(RandomTokens({.key_dim = 4, .value_dim = 4}, 1, 1), 0, 1);
  request.set_generation(1);
  const grpc::Status status = session.Append(request).status;
  EXPECT_TRUE(FailedWith(status, StatusCode::ABORTED, v1::STALE_GENERATION));
  EXPECT_EQ(MetadataOf(status)["generation"], std::to_string(session.generation()));
  EXPECT_EQ(MetadataOf(status)["position.0"], "0");
}

TEST_F(SessionCalls, TheServerTellsItsLimits) {
  v1::ServerInfo info;
  ASSERT_TRUE(Succeeded(server_.stub().GetServerInfo(Context().get(), {}, &info)));
  const server::Options options = TestOptions();
  EXPECT_FALSE(info.version().empty());
  EXPECT_GE(info.numerics_version(), 1);
  EXPECT_EQ(info.workers(), options.workers);
  EXPECT_EQ(info.engines_size(), 3);
  // All of the contract, but for the unspecified one.
  EXPECT_EQ(info.feature_maps_size(), v1::FeatureMapKind_descriptor()->value_count() - 1);
  EXPECT_EQ(info.limits().max_message_bytes(), options.max_message_bytes);
  EXPECT_EQ(info.limits().max_state_bytes(), options.max_state_bytes);
  EXPECT_EQ(info.limits().max_layers(), options.max_layers);
  EXPECT_EQ(info.limits().max_feature_map_bytes(), options.max_feature_map_bytes);
  EXPECT_EQ(info.limits().max_feature_map_size(), options.max_feature_map_size);
  EXPECT_EQ(info.limits().default_time_to_live().seconds(), 3600);
}

}  // namespace
}  // namespace attnd::e2e
