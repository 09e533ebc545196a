// Attend: right answers for every engine and map, what may be asked for, and waiting for a
// position.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape = {.kv_heads = 2, .query_heads = 6, .key_dim = 8, .value_dim = 5};

oracle::Context ContextOf(const Tokens& tokens, double scale) {
  const Shape& shape = tokens.shape;
  return {shape.kv_heads,
          shape.query_heads,
          shape.key_dim,
          shape.value_dim,
          scale,
          tokens.count,
          tokens.keys.data(),
          tokens.values.data(),
          tokens.mask.empty() ? nullptr : tokens.mask.data()};
}

class Attend : public ::testing::Test {
 protected:
  TestServer server_;
  const Tokens tokens_ = RandomTokens(kShape, 300, 1);
  const std::vector<float> queries_ = RandomQueries(kShape, 20, 1);
};

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
      if (position > 0) ASSERT_TRUE(Succeeded(session.Append(masked, 0, 300).status));
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

TEST_F(Attend, PartialsOverTwoContextsMergeToTheWhole) {
  v1::AnswerOptions options;
  options.set_partials(true);
  const std::vector<std::pair<std::string, v1::LayerGroup>> groups = {
      {"exact", ExactGroup(kShape)},
      {"linear", LinearGroup(kShape)},
      {"favor", LinearGroup(kShape, v1::FAVOR_POSITIVE)}};
  for (const auto& [name, group] : groups) {
    const bool exact = name == "exact";
    const v1::SessionConfig config = ConfigOf({group});
    const TestSession whole(server_.stub(), name, config);
    const TestSession left(server_.stub(), name + "-left", config);
    const TestSession right(server_.stub(), name + "-right", config);
    ASSERT_TRUE(Succeeded(whole.Append(tokens_, 0, 300).status));
    ASSERT_TRUE(Succeeded(left.Append(tokens_, 0, 110).status));
    v1::AppendRequest rest = right.AppendOf(tokens_, 110, 190);
    rest.mutable_tokens(0)->set_position(0);
    ASSERT_TRUE(Succeeded(right.Append(rest).status));

    const v1::Answer want = whole.Attend(whole.AttendOf(kShape, queries_, 0, 20))->answer();
    const v1::Answer a = left.Attend(left.AttendOf(kShape, queries_, 0, 20, options))->answer();
    const v1::Answer b = right.Attend(right.AttendOf(kShape, queries_, 0, 20, options))->answer();
    std::vector<double> merged;
    if (exact) {
      const std::vector<float> oa = Floats(a.outputs());
      const std::vector<float> ob = Floats(b.outputs());
      const std::vector<float> za = Floats(a.partial().log_normalizers());
      const std::vector<float> zb = Floats(b.partial().log_normalizers());
      for (std::size_t row = 0; row < 120; ++row) {
        const double most = std::max(za[row], zb[row]);
        const double wa = std::exp(static_cast<double>(za[row]) - most);
        const double wb = std::exp(static_cast<double>(zb[row]) - most);
        for (std::size_t j = 0; j < 5; ++j) {
          merged.push_back((wa * static_cast<double>(oa[row * 5 + j]) +
                            wb * static_cast<double>(ob[row * 5 + j])) /
                           (wa + wb));
        }
      }
    } else {
      ASSERT_EQ(a.partial().exponents_size(), name == "favor" ? 120 : 1);
      if (name == "linear") EXPECT_EQ(a.partial().exponents(0), 0);
      const auto power = [](const v1::Answer& answer, std::size_t row) {
        const int at = answer.partial().exponents_size() == 1 ? 0 : static_cast<int>(row);
        return std::ldexp(1.0, answer.partial().exponents(at));
      };
      const std::vector<float> na = Floats(a.partial().numerators());
      const std::vector<float> nb = Floats(b.partial().numerators());
      const std::vector<float> da = Floats(a.partial().denominators());
      const std::vector<float> db = Floats(b.partial().denominators());
      for (std::size_t i = 0; i < 600; ++i) {
        const double pa = power(a, i / 5);
        const double pb = power(b, i / 5);
        merged.push_back(
            (pa * static_cast<double>(na[i]) + pb * static_cast<double>(nb[i])) /
            (pa * static_cast<double>(da[i / 5]) + pb * static_cast<double>(db[i / 5])));
      }
    }
    EXPECT_LT(RelativeError(Floats(want.outputs()), merged), 2e-6) << name;
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

TEST_F(Attend, EfficientAttentionHasNeitherDenominatorsNorPartials) {
  const TestSession session(server_.stub(), "s", ConfigOf({LinearGroup(kShape, v1::EFFICIENT)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, 10).status));
  v1::AnswerOptions denominators;
  denominators.set_denominators(true);
  EXPECT_TRUE(
      FailedWith(session.Attend(session.AttendOf(kShape, queries_, 0, 2, denominators)).status,
                 StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
  v1::AnswerOptions partials;
  partials.set_partials(true);
  EXPECT_TRUE(FailedWith(session.Attend(session.AttendOf(kShape, queries_, 0, 2, partials)).status,
                         StatusCode::INVALID_ARGUMENT, v1::NOT_MERGEABLE));
  EXPECT_TRUE(FailedWith(session.Step(session.StepOf(tokens_, queries_, 10, 2, partials)).status,
                         StatusCode::INVALID_ARGUMENT, v1::NOT_MERGEABLE));
  EXPECT_EQ(session.Get()->position(), 10);
  const v1::EngineFacts facts = session.Get()->engine_facts(0);
  EXPECT_EQ(facts.engine(), "linear");
  EXPECT_EQ(facts.feature_dim(), kShape.key_dim);
  EXPECT_EQ(facts.bytes_per_token(), 0);
}

TEST_F(Attend, GuardsAndFlagsSayWhatBecameOfADenominator) {
  // One key feature of 1 and queries that are orthogonal, tiny, or too large.
  const Shape shape = {.key_dim = 2, .value_dim = 1};
  const Tokens tokens = {shape, 1, {1, 0}, {3}, {}};
  const std::vector<float> queries = {0, 1, 1e-7F, 0, 1, 0, 3e38F, 3e38F};
  v1::AnswerOptions options;
  options.set_flags(true);
  v1::LayerGroup group = LinearGroup(shape, v1::RELU);
  const TestSession strict(server_.stub(), "strict", ConfigOf({group}));
  ASSERT_TRUE(Succeeded(strict.Append(tokens, 0, 1).status));
  v1::Answer answer = strict.Attend(strict.AttendOf(shape, queries, 0, 3, options))->answer();
  EXPECT_EQ(Floats(answer.outputs()), (std::vector<float>{0, 0, 3}));
  EXPECT_EQ(answer.flags(),
            std::string({v1::QUERY_FLAG_NON_POSITIVE, v1::QUERY_FLAG_TINY, v1::QUERY_FLAG_OK}));

  group.mutable_linear()->mutable_guard()->set_policy(v1::DenominatorGuard::CLAMP);
  group.mutable_linear()->mutable_guard()->set_epsilon(0.5);
  const TestSession clamp(server_.stub(), "clamp", ConfigOf({group}));
  ASSERT_TRUE(Succeeded(clamp.Append(tokens, 0, 1).status));
  EXPECT_EQ(Floats(clamp.Attend(clamp.AttendOf(shape, queries, 2, 1))->answer().outputs()),
            (std::vector<float>{3}));

  group.mutable_linear()->mutable_guard()->set_policy(v1::DenominatorGuard::ADD_EPSILON);
  const TestSession add(server_.stub(), "add", ConfigOf({group}));
  ASSERT_TRUE(Succeeded(add.Append(tokens, 0, 1).status));
  EXPECT_EQ(Floats(add.Attend(add.AttendOf(shape, queries, 2, 1))->answer().outputs()),
            (std::vector<float>{2}));

  const TestSession squared(server_.stub(), "squared",
                            ConfigOf({LinearGroup(shape, v1::SQUARED_RELU)}));
  ASSERT_TRUE(Succeeded(squared.Append(tokens, 0, 1).status));
  answer = squared.Attend(squared.AttendOf(shape, queries, 2, 2, options))->answer();
  EXPECT_EQ(Floats(answer.outputs()), (std::vector<float>{3, 0}));
  EXPECT_EQ(answer.flags(), std::string({v1::QUERY_FLAG_OK, v1::QUERY_FLAG_OVERFLOW}));
}

TEST_F(Attend, NarrowTypesGoInAndOut) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, 300).status));
  v1::AttendRequest request = session.AttendOf(kShape, queries_, 0, 20);
  const std::vector<float> wide = Floats(session.Attend(request)->answer().outputs());
  for (const v1::DataType type : {v1::F16, v1::BF16}) {
    request.mutable_options()->set_output_dtype(type);
    const Reply<v1::AttendResponse> reply = session.Attend(request);
    ASSERT_TRUE(Succeeded(reply.status));
    const v1::Tensor& outputs = reply->answer().outputs();
    EXPECT_EQ(outputs.dtype(), type);
    EXPECT_EQ(std::vector<std::int64_t>(outputs.shape().begin(), outputs.shape().end()),
              (std::vector<std::int64_t>{20, 6, 5}));
    EXPECT_EQ(outputs.data(), MakeTensor(wide.data(), {20, 6, 5}, type).data()) << "rounded once";

    v1::AttendRequest narrow = session.AttendOf(kShape, queries_, 0, 20);
    *narrow.mutable_queries() = QueryTensor(kShape, queries_, 0, 20, type);
    const std::vector<float> rounded = Floats(narrow.queries());
    EXPECT_EQ(session.Attend(narrow)->answer().outputs().data(),
              session.Attend(session.AttendOf(kShape, rounded, 0, 20))->answer().outputs().data());
  }
  request.mutable_options()->set_output_dtype(static_cast<v1::DataType>(9));
  EXPECT_EQ(session.Attend(request).status.error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST_F(Attend, AnOutputThatDoesNotFitF16IsToldAsSuch) {
  Tokens large = tokens_;
  large.values[0] = 3e8F;
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(large, 0, 10).status));
  v1::AnswerOptions options;
  options.set_output_dtype(v1::F16);
  EXPECT_TRUE(FailedWith(session.Attend(session.AttendOf(kShape, queries_, 0, 1, options)).status,
                         StatusCode::INVALID_ARGUMENT, v1::OUTPUT_OVERFLOW));
  options.set_output_dtype(v1::BF16);
  EXPECT_TRUE(Succeeded(session.Attend(session.AttendOf(kShape, queries_, 0, 1, options)).status));
}

TEST_F(Attend, WhatIsNotOfferedOrOutOfRangeIsRefused) {
  const TestSession exact(server_.stub(), "exact", ConfigOf({ExactGroup(kShape)}));
  const TestSession linear(server_.stub(), "linear", ConfigOf({LinearGroup(kShape)}));
  v1::AttendRequest request = linear.AttendOf(kShape, queries_, 0, 2);
  request.mutable_options()->set_top_k(1);
  EXPECT_TRUE(
      FailedWith(linear.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
  request = exact.AttendOf(kShape, queries_, 0, 2);
  request.mutable_options()->set_denominators(true);
  EXPECT_TRUE(
      FailedWith(exact.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
  for (const std::int32_t k : {-1, 65}) {
    request = exact.AttendOf(kShape, queries_, 0, 2);
    request.mutable_options()->set_top_k(k);
    EXPECT_TRUE(
        FailedWith(exact.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  }
  for (const std::int32_t layer : {-1, 1, std::numeric_limits<std::int32_t>::max()}) {
    request = exact.AttendOf(kShape, queries_, 0, 2);
    request.set_layer(layer);
    EXPECT_TRUE(
        FailedWith(exact.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  }
  request = exact.AttendOf(kShape, queries_, 0, 2);
  request.add_query_positions(3);
  EXPECT_TRUE(
      FailedWith(exact.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request.add_query_positions(-1);
  EXPECT_TRUE(
      FailedWith(exact.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request.set_query_positions(1, 0);
  EXPECT_TRUE(Succeeded(exact.Attend(request).status));
  request = exact.AttendOf(kShape, queries_, 0, 2);
  request.set_min_position(-1);
  EXPECT_TRUE(
      FailedWith(exact.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  std::vector<float> bad = queries_;
  bad[48] = INFINITY;
  EXPECT_TRUE(FailedWith(exact.Attend(exact.AttendOf(kShape, bad, 0, 2)).status,
                         StatusCode::INVALID_ARGUMENT, v1::NOT_FINITE));
  request = exact.AttendOf(kShape, queries_, 0, 2);
  request.clear_queries();
  EXPECT_TRUE(
      FailedWith(exact.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR));
}

// ---- min_position

class MinPosition : public Attend {
 protected:
  MinPosition() { EXPECT_TRUE(Succeeded(session_.Append(tokens_, 0, 10).status)); }

  v1::AttendRequest Waiting(std::int64_t position) const {
    v1::AttendRequest request = session_.AttendOf(kShape, queries_, 0, 1);
    request.set_min_position(position);
    request.set_wait(true);
    return request;
  }
  // Runs `end` while an Attend waits for position 11; returns how that ended.
  template <typename End>
  Reply<v1::AttendResponse> WhileWaiting(End end) {
    Reply<v1::AttendResponse> reply;
    const auto context = Context(20);
    std::thread waiting(
        [&] { reply.status = server_.stub().Attend(context.get(), Waiting(11), &reply.value); });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    end(*context);
    waiting.join();
    return reply;
  }

  const TestSession session_{server_.stub(), "s", ConfigOf({ExactGroup(kShape)})};
};

TEST_F(MinPosition, NotReachedFailsAtOnceWithThePosition) {
  v1::AttendRequest request = Waiting(11);
  request.set_wait(false);
  const grpc::Status status = session_.Attend(request).status;
  EXPECT_TRUE(FailedWith(status, StatusCode::FAILED_PRECONDITION, v1::POSITION_NOT_REACHED));
  EXPECT_EQ(MetadataOf(status)["layer"], "0");
  EXPECT_EQ(MetadataOf(status)["position"], "10");
  request.set_min_position(10);
  EXPECT_EQ(session_.Attend(request)->position(), 10);
}

TEST_F(MinPosition, AWaitEndsWhenTheTokensCome) {
  const Reply<v1::AttendResponse> reply = WhileWaiting([this](grpc::ClientContext&) {
    EXPECT_TRUE(Succeeded(session_.Append(tokens_, 10, 5).status));
  });
  ASSERT_TRUE(Succeeded(reply.status));
  EXPECT_EQ(reply->position(), 15);
}

TEST_F(MinPosition, AWaitEndsWithTheSession) {
  const Reply<v1::AttendResponse> reply =
      WhileWaiting([this](grpc::ClientContext&) { EXPECT_TRUE(Succeeded(session_.Delete())); });
  EXPECT_TRUE(FailedWith(reply.status, StatusCode::NOT_FOUND, v1::DELETED));
}

TEST_F(MinPosition, AWaitEndsWithTheServersDrain) {
  const Reply<v1::AttendResponse> reply =
      WhileWaiting([this](grpc::ClientContext&) { server_.server().Drain(); });
  EXPECT_TRUE(FailedWith(reply.status, StatusCode::UNAVAILABLE, v1::SHUTTING_DOWN));
}

TEST_F(MinPosition, AWaitThatIsCancelledOrTimesOutHoldsNothing) {
  const Reply<v1::AttendResponse> reply =
      WhileWaiting([](grpc::ClientContext& context) { context.TryCancel(); });
  EXPECT_EQ(reply.status.error_code(), StatusCode::CANCELLED);
  v1::AttendResponse response;
  EXPECT_EQ(server_.stub().Attend(Context(1).get(), Waiting(11), &response).error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  // The server drains at once if it holds no request any more.
  const auto start = std::chrono::steady_clock::now();
  server_.server().Drain();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST_F(MinPosition, ManyWaitsAtManyPositionsAllEnd) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (std::int64_t i = 0; i < 24; ++i) {
    threads.emplace_back([&, i] {
      const Reply<v1::AttendResponse> reply = session_.Attend(Waiting(10 + 8 * i));
      if (reply.status.ok() && reply->position() >= 10 + 8 * i) ++right;
    });
  }
  for (std::int64_t i = 10; i < 300; i += 10) {
    ASSERT_TRUE(Succeeded(session_.Append(tokens_, i, 10).status));
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 24);
}

}  // namespace
}  // namespace attnd::e2e
