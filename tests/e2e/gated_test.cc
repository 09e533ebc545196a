// Decays and delta rules over the wire: gates travel with tokens, retries know them, and what a
// rule does not offer is refused by name.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/oracle/recurrence.h"

namespace attnd::e2e {
namespace {

constexpr Shape kShape = {.kv_heads = 2, .query_heads = 4, .key_dim = 12, .value_dim = 9};
constexpr std::int64_t kTokens = 200;

class Gated : public ::testing::Test {
 protected:
  Gated() { AddGates(group_, 3, tokens_); }

  const v1::LayerGroup group_ = GatedGroup(kShape, v1::UpdateRule::PER_TOKEN, /*delta=*/true);
  Tokens tokens_ = RandomTokens(kShape, kTokens, 2);
  const std::vector<float> queries_ = RandomQueries(kShape, kTokens, 2);
  TestServer server_;
};

oracle::Answers TruthOf(const Tokens& tokens, const std::vector<float>& queries) {
  oracle::Recurrence rule;
  rule.decay = [&](std::int64_t token, std::int64_t head, std::int64_t) {
    return std::exp(static_cast<double>(
        tokens.log_decays[static_cast<std::size_t>(token * kShape.kv_heads + head)]));
  };
  rule.rate = [&](std::int64_t token, std::int64_t head) {
    return static_cast<double>(
        tokens.rates[static_cast<std::size_t>(token * kShape.kv_heads + head)]);
  };
  oracle::Context context;
  context.kv_heads = kShape.kv_heads;
  context.query_heads = kShape.query_heads;
  context.key_dim = kShape.key_dim;
  context.value_dim = kShape.value_dim;
  context.tokens = tokens.count;
  context.keys = tokens.keys.data();
  context.values = tokens.values.data();
  return Recur(context, {queries.data(), oracle::CausallyVisible(tokens.count, 1)}, rule);
}

TEST_F(Gated, StepsOfGatedDeltaNetAreTheRecurrence) {
  const TestSession session(server_.stub(), "delta", ConfigOf({group_}));
  std::vector<float> outputs;
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 70}, {71, 129}}) {
    const auto step = session.Step(session.StepOf(tokens_, queries_, first, count));
    ASSERT_TRUE(Succeeded(step.status));
    const std::vector<float> part = Floats(step->answer().outputs());
    outputs.insert(outputs.end(), part.begin(), part.end());
  }
  EXPECT_LE(RelativeError(outputs, TruthOf(tokens_, queries_).outputs), 1e-5);
}

TEST_F(Gated, ARetryWithOtherGatesIsAMismatch) {
  const TestSession session(server_.stub(), "retry", ConfigOf({group_}));
  const v1::AppendRequest append = session.AppendOf(tokens_, 0, 100);
  ASSERT_TRUE(Succeeded(session.Append(append).status));
  const auto again = session.Append(append);
  ASSERT_TRUE(Succeeded(again.status));
  EXPECT_TRUE(again->replayed());
  for (std::vector<float>* gates : {&tokens_.log_decays, &tokens_.rates}) {
    (*gates)[30] /= 2;
    EXPECT_TRUE(FailedWith(session.Append(session.AppendOf(tokens_, 0, 100)).status,
                           grpc::StatusCode::ABORTED, v1::REPLAY_MISMATCH));
    (*gates)[30] *= 2;
  }
}

TEST_F(Gated, GatesThatAreMissingOrTooManyAreRefused) {
  const TestSession gated(server_.stub(), "gated", ConfigOf({group_}));
  const TestSession plain(server_.stub(), "plain", ConfigOf({LinearGroup(kShape)}));
  v1::AppendRequest append = plain.AppendOf(tokens_, 0, 3);
  EXPECT_TRUE(
      FailedWith(plain.Append(append).status, grpc::StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
  append = gated.AppendOf(tokens_, 0, 3);
  append.mutable_tokens(0)->clear_rates();
  EXPECT_TRUE(
      FailedWith(gated.Append(append).status, grpc::StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
  append = gated.AppendOf(tokens_, 0, 3);
  *append.mutable_tokens(0)->mutable_log_decays() = append.tokens(0).keys();
  EXPECT_TRUE(
      FailedWith(gated.Append(append).status, grpc::StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
  append = gated.AppendOf(tokens_, 0, 3);
  *append.mutable_tokens(0)->mutable_rates() = Slice(tokens_, 0, 2).rates();
  EXPECT_TRUE(
      FailedWith(gated.Append(append).status, grpc::StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
  tokens_.log_decays[3] = 0.5F;
  EXPECT_TRUE(FailedWith(gated.Append(tokens_, 0, 3).status, grpc::StatusCode::INVALID_ARGUMENT,
                         v1::NOT_FINITE));
  EXPECT_EQ(gated.Get()->position(), 0);
}

TEST_F(Gated, GatesMayBeHalfPrecision) {
  const TestSession session(server_.stub(), "half", ConfigOf({group_}));
  v1::AppendRequest append = session.AppendOf(tokens_, 0, 90);
  *append.mutable_tokens(0) = Slice(tokens_, 0, 90, 0, v1::F16);
  EXPECT_TRUE(Succeeded(session.Append(append).status));
}

TEST_F(Gated, DenominatorsAndPartialsAreRefusedByName) {
  const TestSession session(server_.stub(), "options", ConfigOf({group_}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, 10).status));
  v1::AnswerOptions options;
  options.set_denominators(true);
  EXPECT_TRUE(FailedWith(session.Attend(session.AttendOf(kShape, queries_, 0, 1, options)).status,
                         grpc::StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
  options.set_denominators(false);
  options.set_partials(true);
  EXPECT_TRUE(FailedWith(session.Attend(session.AttendOf(kShape, queries_, 0, 1, options)).status,
                         grpc::StatusCode::INVALID_ARGUMENT, v1::NOT_MERGEABLE));
}

TEST_F(Gated, TheRuleIsPartOfTheConfiguration) {
  const TestSession session(server_.stub(), "same", ConfigOf({group_}));
  EXPECT_EQ(session.Get()->config().layer_groups(0).linear().update().decay(),
            v1::UpdateRule::PER_TOKEN);
  v1::CreateSessionRequest request;
  request.set_session_id("same");
  *request.mutable_config() = ConfigOf({GatedGroup(kShape, v1::UpdateRule::PER_TOKEN)});
  v1::Session created;
  EXPECT_TRUE(FailedWith(server_.stub().CreateSession(Context().get(), request, &created),
                         grpc::StatusCode::ALREADY_EXISTS, v1::SESSION_EXISTS));
  v1::LayerGroup bad = GatedGroup(kShape, v1::UpdateRule::PER_FEATURE, true);
  request.set_session_id("bad");
  *request.mutable_config() = ConfigOf({bad});
  EXPECT_TRUE(FailedWith(server_.stub().CreateSession(Context().get(), request, &created),
                         grpc::StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
}

}  // namespace
}  // namespace attnd::e2e
