// Attend: right answers for every engine and map.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/attend_fixture.h"
#include "tests/e2e/harness.h"
#include "tests/e2e/oracle_context.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

TEST_F(Attend, AgreesWithTheDefinitionForEveryEngineAndMap) {
  Tokens tokens = tokens_;
  tokens.mask.assign(300, 1);
  for (std::size_t i = 0; i < 300; i += 7) tokens.mask[i] = 0;
  const oracle::Queries queries = {queries_.data(), oracle::AllVisible(20, 300)};

  const TestSession exact(server_.stub(), "exact", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(exact.Append(tokens, 0, 300).status));
  const Reply<v1::AttendResponse> softmax = exact.Attend(exact.AttendOf(kShape, queries_, 0, 20));
  EXPECT_EQ(softmax->position(), 300);
  EXPECT_LT(RelativeError(Floats(softmax->answer().outputs()),
                          oracle::Softmax(ContextOf(tokens, 1 / std::sqrt(8.0)), queries).outputs),
            2e-6);

  struct Map {
    v1::FeatureMapKind kind;
    oracle::FeatureMap oracle;
    float epsilon;
  };
  for (const Map& map :
       {Map{v1::ELU_PLUS_ONE, oracle::FeatureMap::kEluPlusOne, 0},
        Map{v1::RELU, oracle::FeatureMap::kRelu, 0}, Map{v1::RELU, oracle::FeatureMap::kRelu, 0.5F},
        Map{v1::SQUARED_RELU, oracle::FeatureMap::kSquaredRelu, 0},
        Map{v1::IDENTITY, oracle::FeatureMap::kIdentity, 0}}) {
    for (const bool normalized : {true, false}) {
      if (normalized && map.kind == v1::IDENTITY) continue;
      v1::LayerGroup group = LinearGroup(kShape, map.kind);
      group.mutable_linear()->mutable_feature_map()->set_epsilon(map.epsilon);
      group.mutable_linear()->set_normalization(normalized ? v1::NORMALIZED : v1::UNNORMALIZED);
      group.set_scale(0.7F);
      const std::string name = v1::FeatureMapKind_Name(map.kind) + std::to_string(normalized) +
                               std::to_string(map.epsilon > 0);
      const TestSession session(server_.stub(), name, ConfigOf({group}));
      ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 300).status));
      v1::AnswerOptions options;
      options.set_denominators(true);
      options.set_partials(true);
      options.set_flags(true);
      const Reply<v1::AttendResponse> reply =
          session.Attend(session.AttendOf(kShape, queries_, 0, 20, options));
      ASSERT_TRUE(Succeeded(reply.status)) << name;
      const oracle::Answers want = oracle::Linear(ContextOf(tokens, 0.7F), queries, map.oracle,
                                                  static_cast<double>(map.epsilon), normalized);
      const v1::Answer& answer = reply->answer();
      EXPECT_LT(RelativeError(Floats(answer.outputs()), want.outputs), 4e-6) << name;
      EXPECT_LT(RelativeError(Floats(answer.denominators()), want.denominators), 4e-6) << name;
      EXPECT_LT(RelativeError(Floats(answer.partial().numerators()), want.numerators), 4e-6)
          << name;
      EXPECT_EQ(answer.partial().denominators().data(), answer.denominators().data());
      for (std::size_t row = 0; row < 120 && map.kind != v1::IDENTITY; ++row) {
        // A query whose features are all zero reads nothing.
        EXPECT_EQ(answer.flags()[row], !normalized || want.denominators[row] > 0
                                           ? v1::QUERY_FLAG_OK
                                           : v1::QUERY_FLAG_NON_POSITIVE)
            << name << " row " << row;
      }
    }
  }
}

TEST_F(Attend, AnEmptySessionGivesZerosAndSaysSo) {
  Tokens masked = tokens_;
  masked.mask.assign(300, 0);
  v1::AnswerOptions options;
  options.set_flags(true);
  options.set_partials(true);
  for (const bool exact : {true, false}) {
    const TestSession session(server_.stub(), exact ? "exact" : "linear",
                              ConfigOf({exact ? ExactGroup(kShape) : LinearGroup(kShape)}));
    options.set_top_k(exact ? 2 : 0);
    options.set_denominators(!exact);
    for (const std::int64_t position : {0, 300}) {  // no token; 300 masked ones
      if (position > 0) {
        ASSERT_TRUE(Succeeded(session.Append(masked, 0, 300).status));
      }
      const Reply<v1::AttendResponse> reply =
          session.Attend(session.AttendOf(kShape, queries_, 0, 20, options));
      ASSERT_TRUE(Succeeded(reply.status));
      EXPECT_EQ(reply->position(), position);
      const v1::Answer& answer = reply->answer();
      EXPECT_EQ(answer.flags(), std::string(120, char{v1::QUERY_FLAG_EMPTY}));
      EXPECT_EQ(Floats(answer.outputs()), std::vector<float>(600, 0.0F));
      if (exact) {
        EXPECT_EQ(Floats(answer.partial().log_normalizers()),
                  std::vector<float>(120, -std::numeric_limits<float>::infinity()));
        EXPECT_EQ(answer.top_k().positions_size(), 240);
        for (const std::int64_t top : answer.top_k().positions()) EXPECT_EQ(top, -1);
        EXPECT_EQ(Floats(answer.top_k().weights()), std::vector<float>(240, 0.0F));
      } else {
        EXPECT_EQ(Floats(answer.denominators()), std::vector<float>(120, 0.0F));
      }
    }
  }
}

TEST_F(Attend, TopKAreThePositionsOfLargestWeight) {
  Tokens tokens = tokens_;
  tokens.mask.assign(300, 1);
  tokens.mask[17] = 0;
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  v1::AnswerOptions options;
  options.set_top_k(64);
  ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 30).status));
  const Reply<v1::AttendResponse> few =
      session.Attend(session.AttendOf(kShape, queries_, 0, 1, options));
  EXPECT_EQ(few->answer().top_k().positions(28) >= 0, true);
  EXPECT_EQ(few->answer().top_k().positions(29), -1) << "29 of 30 tokens are not masked";

  ASSERT_TRUE(Succeeded(session.Append(tokens, 30, 270).status));
  options.set_top_k(5);
  const Reply<v1::AttendResponse> reply =
      session.Attend(session.AttendOf(kShape, queries_, 0, 20, options));
  const v1::TopK& top = reply->answer().top_k();
  ASSERT_EQ(top.positions_size(), 20 * 6 * 5);
  const std::vector<float> weights = Floats(top.weights());
  const oracle::Context context = ContextOf(tokens, 1 / std::sqrt(8.0));
  const oracle::Queries queries = {queries_.data(), oracle::AllVisible(20, 300)};
  for (std::int64_t q = 0; q < 20; ++q) {
    for (std::int64_t h = 0; h < 6; ++h) {
      std::vector<double> want = oracle::SoftmaxWeights(context, queries, q, h);
      for (std::int64_t k = 0; k < 5; ++k) {
        const auto at = static_cast<int>((q * 6 + h) * 5 + k);
        const auto best = std::max_element(want.begin(), want.end());
        EXPECT_EQ(top.positions(at), best - want.begin());
        EXPECT_NEAR(weights[static_cast<std::size_t>(at)], *best, 1e-6);
        *best = -1;
      }
    }
  }
}

TEST_F(Attend, AMapThatLooksAtPositionsNeedsThemAndAnswersAsStepDoes) {
  v1::LayerGroup group = LinearGroup(kShape, v1::COSFORMER);
  group.mutable_linear()->mutable_feature_map()->set_horizon(1000);
  const TestSession steps(server_.stub(), "steps", ConfigOf({group}));
  const TestSession appends(server_.stub(), "appends", ConfigOf({group}));
  const std::vector<float> queries = RandomQueries(kShape, 300, 2);
  const Reply<v1::StepResponse> step = steps.Step(steps.StepOf(tokens_, queries, 0, 300));
  ASSERT_TRUE(Succeeded(step.status));
  ASSERT_TRUE(Succeeded(appends.Append(tokens_, 0, 300).status));
  v1::AttendRequest request = appends.AttendOf(kShape, queries, 299, 1);
  EXPECT_TRUE(
      FailedWith(appends.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request.add_query_positions(299);
  const Reply<v1::AttendResponse> there = appends.Attend(request);
  ASSERT_TRUE(Succeeded(there.status));
  const std::string& all = step->answer().outputs().data();
  const std::string& one = there->answer().outputs().data();
  EXPECT_EQ(all.substr(all.size() - one.size()), one);
  request.set_query_positions(0, 900);
  EXPECT_NE(appends.Attend(request)->answer().outputs().data(), one);
}

TEST_F(Attend, EfficientAttentionAgreesWithItsDefinitionForKeysOfAnySize) {
  v1::LayerGroup group = LinearGroup(kShape, v1::EFFICIENT);
  group.set_scale(0.5F);
  const oracle::Queries queries = {queries_.data(), oracle::AllVisible(20, 300)};
  for (const float factor : {1.0F, 30.0F, 1e30F}) {
    Tokens tokens = tokens_;
    tokens.mask.assign(300, 1);
    for (std::size_t i = 0; i < 300; i += 7) tokens.mask[i] = 0;
    for (float& key : tokens.keys) key *= factor;
    const TestSession session(server_.stub(), "s" + std::to_string(factor), ConfigOf({group}));
    ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 300).status));
    v1::AnswerOptions options;
    options.set_flags(true);
    const Reply<v1::AttendResponse> reply =
        session.Attend(session.AttendOf(kShape, queries_, 0, 20, options));
    ASSERT_TRUE(Succeeded(reply.status));
    EXPECT_LT(RelativeError(Floats(reply->answer().outputs()),
                            oracle::Efficient(ContextOf(tokens, 0.5), queries).outputs),
              4e-6)
        << factor;
    EXPECT_EQ(reply->answer().flags(), std::string(120, char{v1::QUERY_FLAG_OK}));
  }
}

}  // namespace
}  // namespace attnd::e2e
