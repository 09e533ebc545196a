// Step: causal answers, replay of the same bits, and what ends replay.
#include <cmath>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/oracle_context.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape = {.kv_heads = 2, .query_heads = 4, .key_dim = 8, .value_dim = 6};

class Step : public ::testing::Test {
 protected:
  TestServer server_;
  const Tokens tokens_ = RandomTokens(kShape, 300, 1);
  const std::vector<float> queries_ = RandomQueries(kShape, 300, 1);
};

TEST_F(Step, EachQuerySeesTheTokensUpToItsOwn) {
  const oracle::Queries queries = {queries_.data(), oracle::CausallyVisible(300, 1)};
  const TestSession exact(server_.stub(), "exact", ConfigOf({ExactGroup(kShape)}));
  const TestSession linear(server_.stub(), "linear", ConfigOf({LinearGroup(kShape)}));
  const Reply<v1::StepResponse> softmax = exact.Step(exact.StepOf(tokens_, queries_, 0, 300));
  const Reply<v1::StepResponse> sums = linear.Step(linear.StepOf(tokens_, queries_, 0, 300));
  ASSERT_TRUE(Succeeded(softmax.status));
  ASSERT_TRUE(Succeeded(sums.status));
  EXPECT_EQ(softmax->position(), 300);
  EXPECT_LT(RelativeError(Floats(softmax->answer().outputs()),
                          oracle::Softmax(ContextOf(tokens_, 1 / std::sqrt(8.0)), queries).outputs),
            2e-6);
  EXPECT_LT(RelativeError(Floats(sums->answer().outputs()),
                          oracle::Linear(ContextOf(tokens_, 1), queries,
                                         oracle::FeatureMap::kEluPlusOne, 0, true)
                              .outputs),
            2e-6);
}

TEST_F(Step, EfficientAttentionReadsTheSoftmaxOverThePrefix) {
  Tokens tokens = tokens_;
  // A token that takes over every column it comes after.
  for (std::size_t i = 0; i < 16; ++i) tokens.keys[std::size_t{150} * 16 + i] += 100.0F;
  const oracle::Queries queries = {queries_.data(), oracle::CausallyVisible(300, 1)};
  const TestSession session(server_.stub(), "s", ConfigOf({LinearGroup(kShape, v1::EFFICIENT)}));
  const Reply<v1::StepResponse> reply = session.Step(session.StepOf(tokens, queries_, 0, 300));
  ASSERT_TRUE(Succeeded(reply.status));
  EXPECT_LT(RelativeError(Floats(reply->answer().outputs()),
                          oracle::Efficient(ContextOf(tokens, 1), queries).outputs),
            2e-6);
}

// The digest of a message once left its position out: the retry of the first of two equal Steps was
// answered with the second one's outputs.
TEST_F(Step, TheRetryOfAnEarlierEqualStepDoesNotGetTheLaterAnswer) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  v1::StepRequest first = session.StepOf(tokens_, queries_, 0, 1);
  v1::StepRequest second = first;
  second.mutable_tokens()->set_position(1);
  ASSERT_TRUE(Succeeded(session.Step(first).status));
  ASSERT_TRUE(Succeeded(session.Step(second).status));
  EXPECT_TRUE(FailedWith(session.Step(first).status, StatusCode::FAILED_PRECONDITION,
                         v1::STEP_REPLAY_EXPIRED));
  const Reply<v1::StepResponse> again = session.Step(second);
  ASSERT_TRUE(Succeeded(again.status));
  EXPECT_TRUE(again->replayed());
  EXPECT_EQ(again->position(), 2);
}

TEST_F(Step, ARetryReturnsTheBitsOfTheFirstTimeAndCountsOnce) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  v1::AnswerOptions options;
  options.set_flags(true);
  options.set_partials(true);
  options.set_top_k(3);
  for (const std::int64_t first : {0, 100, 200}) {
    const v1::StepRequest request = session.StepOf(tokens_, queries_, first, 100, options);
    const Reply<v1::StepResponse> once = session.Step(request);
    ASSERT_TRUE(Succeeded(once.status));
    EXPECT_FALSE(once->replayed());
    for (int retry = 0; retry < 2; ++retry) {
      Reply<v1::StepResponse> again = session.Step(request);
      ASSERT_TRUE(Succeeded(again.status));
      EXPECT_TRUE(again->replayed());
      again.value.set_replayed(false);
      EXPECT_EQ(again->SerializeAsString(), once->SerializeAsString());
    }
  }
  EXPECT_EQ(session.Get()->position(), 300);
}

TEST_F(Step, ReplayEndsWithTheNextMutationOfItsLayerOnly) {
  v1::LayerGroup group = ExactGroup(kShape);
  group.set_count(2);
  const TestSession session(server_.stub(), "s", ConfigOf({group}));
  const v1::StepRequest step = session.StepOf(tokens_, queries_, 0, 10);
  const Reply<v1::StepResponse> once = session.Step(step);
  ASSERT_TRUE(Succeeded(once.status));

  // Another layer's tokens, reads, and messages that were refused end nothing.
  v1::AppendRequest other = session.AppendOf(tokens_, 0, 10);
  other.mutable_tokens(0)->set_layer(1);
  ASSERT_TRUE(Succeeded(session.Append(other).status));
  ASSERT_TRUE(Succeeded(session.Attend(session.AttendOf(kShape, queries_, 0, 2)).status));
  EXPECT_TRUE(FailedWith(session.Append(tokens_, 50, 10).status, StatusCode::OUT_OF_RANGE,
                         v1::WRONG_POSITION));
  Reply<v1::StepResponse> again = session.Step(step);
  EXPECT_TRUE(again->replayed());
  EXPECT_EQ(again->answer().outputs().data(), once->answer().outputs().data());

  ASSERT_TRUE(Succeeded(session.Append(tokens_, 10, 1).status));
  EXPECT_TRUE(FailedWith(session.Step(step).status, StatusCode::FAILED_PRECONDITION,
                         v1::STEP_REPLAY_EXPIRED));
  // The tokens are there all the same: an Append of them is not what was sent.
  EXPECT_TRUE(
      FailedWith(session.Append(tokens_, 0, 10).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
}

TEST_F(Step, OtherQueriesOrOptionsAreAnotherMessage) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Step(session.StepOf(tokens_, queries_, 0, 10)).status));
  v1::StepRequest request = session.StepOf(tokens_, queries_, 0, 10);
  request.mutable_options()->set_flags(true);
  EXPECT_TRUE(FailedWith(session.Step(request).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
  request = session.StepOf(tokens_, queries_, 0, 10);
  request.mutable_queries()->mutable_data()->at(0) ^= 1;
  EXPECT_TRUE(FailedWith(session.Step(request).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
}

TEST_F(Step, QueriesMustBeOnePerTokenAndFinite) {
  const TestSession session(server_.stub(), "s", ConfigOf({LinearGroup(kShape)}));
  v1::StepRequest request = session.StepOf(tokens_, queries_, 0, 10);
  *request.mutable_queries() = QueryTensor(kShape, queries_, 0, 9);
  EXPECT_TRUE(
      FailedWith(session.Step(request).status, StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
  std::vector<float> bad = queries_;
  bad[std::size_t{9} * 32] = NAN;
  EXPECT_TRUE(FailedWith(session.Step(session.StepOf(tokens_, bad, 0, 10)).status,
                         StatusCode::INVALID_ARGUMENT, v1::NOT_FINITE));
  request = session.StepOf(tokens_, queries_, 0, 10);
  request.clear_tokens();
  EXPECT_TRUE(
      FailedWith(session.Step(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request = session.StepOf(tokens_, queries_, 0, 10);
  request.clear_generation();
  EXPECT_TRUE(FailedWith(session.Step(request).status, StatusCode::ABORTED, v1::STALE_GENERATION));
  request = session.StepOf(tokens_, queries_, 0, 10);
  request.mutable_tokens()->clear_position();
  EXPECT_TRUE(
      FailedWith(session.Step(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  EXPECT_EQ(session.Get()->position(), 0);
}

TEST_F(Step, AnOutputThatDoesNotFitF16LeavesTheStepUnapplied) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  Tokens large = tokens_;
  large.values[std::size_t{5} * 12] = 1e6F;
  v1::AnswerOptions options;
  options.set_output_dtype(v1::F16);
  const v1::StepRequest request = session.StepOf(large, queries_, 0, 10, options);
  EXPECT_TRUE(
      FailedWith(session.Step(request).status, StatusCode::INVALID_ARGUMENT, v1::OUTPUT_OVERFLOW));
  EXPECT_EQ(session.Get()->position(), 0);
  ASSERT_TRUE(Succeeded(session.Step(session.StepOf(large, queries_, 0, 10)).status));
  EXPECT_EQ(session.Get()->position(), 10);
}

TEST_F(Step, AFeatureOverflowLeavesTheStepUnapplied) {
  const TestSession session(server_.stub(), "s", ConfigOf({LinearGroup(kShape, v1::SQUARED_RELU)}));
  Tokens large = tokens_;
  large.keys[std::size_t{80} * 16] = 1e25F;
  EXPECT_TRUE(FailedWith(session.Step(session.StepOf(large, queries_, 0, 100)).status,
                         StatusCode::INVALID_ARGUMENT, v1::FEATURE_OVERFLOW));
  EXPECT_EQ(session.Get()->position(), 0);
  ASSERT_TRUE(Succeeded(session.Step(session.StepOf(tokens_, queries_, 0, 100)).status));
}

TEST_F(Step, AMaskedTokenIsInvisibleToItsOwnQuery) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  Tokens masked = tokens_;
  masked.mask.assign(300, 1);
  for (std::size_t i : {0U, 1U, 5U, 64U, 130U}) masked.mask[i] = 0;
  v1::AnswerOptions options;
  options.set_flags(true);
  const Reply<v1::StepResponse> reply =
      session.Step(session.StepOf(masked, queries_, 0, 300, options));
  ASSERT_TRUE(Succeeded(reply.status));
  const oracle::Queries queries = {queries_.data(), oracle::CausallyVisible(300, 1)};
  EXPECT_LT(RelativeError(Floats(reply->answer().outputs()),
                          oracle::Softmax(ContextOf(masked, 1 / std::sqrt(8.0)), queries).outputs),
            2e-6);
  for (std::size_t i = 0; i < 300; ++i) {
    const char want = i < 2 ? v1::QUERY_FLAG_EMPTY : v1::QUERY_FLAG_OK;
    for (std::size_t h = 0; h < 4; ++h) EXPECT_EQ(reply->answer().flags()[i * 4 + h], want) << i;
  }
}

}  // namespace
}  // namespace attnd::e2e
