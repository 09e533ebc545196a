// The engine kde over the wire: what it answers and tells of its answers, what accuracy may be
// asked for, and what is refused.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape = {.kv_heads = 2, .query_heads = 4, .key_dim = 8, .value_dim = 5};
constexpr std::int64_t kTokens = 300;
constexpr std::int64_t kQueries = 20;
constexpr std::int64_t kRows = kQueries * 4;

v1::Accuracy AccuracyOf(double target_error, std::int64_t max_keys = 0) {
  v1::Accuracy accuracy;
  accuracy.set_target_error(target_error);
  accuracy.set_max_keys(max_keys);
  return accuracy;
}

class Kde : public ::testing::Test {
 protected:
  static server::Options Options() {
    server::Options options = TestOptions();
    options.http_listen = "127.0.0.1:0";
    return options;
  }
  v1::AttendRequest AttendOf(const TestSession& session, const v1::AnswerOptions& options = {}) {
    return session.AttendOf(kShape, queries_, 0, kQueries, options);
  }
  static v1::AnswerOptions Everything() {
    v1::AnswerOptions options;
    options.set_flags(true);
    options.set_partials(true);
    options.set_estimates(true);
    options.set_top_k(3);
    return options;
  }
  oracle::Answers Truth(std::int64_t first, std::int64_t tokens) const {
    oracle::Context context;
    context.kv_heads = kShape.kv_heads;
    context.query_heads = kShape.query_heads;
    context.key_dim = kShape.key_dim;
    context.value_dim = kShape.value_dim;
    context.scale = 1 / std::sqrt(8.0);
    context.tokens = tokens;
    context.keys = tokens_.keys.data() + first * kShape.kv_heads * kShape.key_dim;
    context.values = tokens_.values.data() + first * kShape.kv_heads * kShape.value_dim;
    return oracle::Softmax(context, {queries_.data(), oracle::AllVisible(kQueries, tokens)});
  }

  TestServer server_{Options()};
  const Tokens tokens_ = RandomTokens(kShape, kTokens, 1);
  const std::vector<float> queries_ = RandomQueries(kShape, kTokens, 1);
};

TEST_F(Kde, IsOfferedAndDescribed) {
  v1::ServerInfo info;
  ASSERT_TRUE(Succeeded(server_.stub().GetServerInfo(Context().get(), {}, &info)));
  EXPECT_TRUE(std::ranges::count(info.engines(), "kde") == 1);
  const TestSession session(server_.stub(), "s", ConfigOf({KdeGroup(kShape)}));
  const Reply<v1::Session> got = session.Get();
  EXPECT_EQ(got->engine_facts(0).engine(), "kde");
  EXPECT_EQ(got->engine_facts(0).feature_dim(), 8);
  const v1::LayerGroup& group = got->config().layer_groups(0);
  EXPECT_EQ(group.kde().mode(), v1::KdeConfig::AUTO);
  EXPECT_EQ(group.kde().accuracy().target_error(), 0.05);
  EXPECT_EQ(group.scale(), static_cast<float>(1 / std::sqrt(8.0)));
}

TEST_F(Kde, AShortContextIsAnsweredExactlyAndSaysSo) {
  const TestSession session(server_.stub(), "s", ConfigOf({KdeGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, kTokens).status));
  const Reply<v1::AttendResponse> reply = session.Attend(AttendOf(session, Everything()));
  ASSERT_TRUE(Succeeded(reply.status));
  const oracle::Answers truth = Truth(0, kTokens);
  EXPECT_LT(RelativeError(Floats(reply->answer().outputs()), truth.outputs), 2e-6);
  const std::vector<float> normalizers = Floats(reply->answer().partial().log_normalizers());
  EXPECT_LT(RelativeError(normalizers, truth.log_normalizers), 2e-6);
  EXPECT_EQ(reply->answer().top_k().positions_size(), kRows * 3);

  const v1::Estimates& estimates = reply->answer().estimates();
  const auto rows = static_cast<std::size_t>(kRows);
  EXPECT_EQ(estimates.coverage(), 0.95);
  EXPECT_EQ(Floats(estimates.errors()), std::vector<float>(rows, 0.0F));
  EXPECT_EQ(Floats(estimates.exact_masses()), std::vector<float>(rows, 1.0F));
  const std::vector<float> bounds = Floats(estimates.log_normalizer_bounds());
  ASSERT_EQ(bounds.size(), 2 * rows);
  for (std::size_t row = 0; row < rows; ++row) {
    EXPECT_EQ(bounds[2 * row], normalizers[row]);
    EXPECT_EQ(bounds[2 * row + 1], normalizers[row]);
  }
  EXPECT_TRUE(std::ranges::all_of(estimates.keys_evaluated(),
                                  [](std::int64_t keys) { return keys == kTokens; }));
  EXPECT_EQ(estimates.keys_evaluated_size(), kRows);
  EXPECT_EQ(estimates.paths(), std::string(rows, '\0'));
  EXPECT_EQ(estimates.calibrated(), std::string(rows, '\1'));
  EXPECT_EQ(estimates.target_met(), std::string(rows, '\1'));
  EXPECT_TRUE(server_.WaitForMetric("attnd_kde_answers_total{path=\"exact\"}", kRows));
  EXPECT_EQ(server_.Metric("attnd_kde_keys_evaluated_count"), kRows);
  EXPECT_EQ(server_.Metric("attnd_kde_calibrated_total"), kRows);
  EXPECT_EQ(server_.Metric("attnd_queries_total{engine=\"kde\"}"), kQueries);
}

TEST_F(Kde, EstimatesAreCountedWhetherTheyAreSentOrNot) {
  const TestSession session(server_.stub(), "s", ConfigOf({KdeGroup(kShape)}));
  const Reply<v1::StepResponse> step = session.Step(session.StepOf(tokens_, queries_, 0, 10));
  ASSERT_TRUE(Succeeded(step.status));
  EXPECT_FALSE(step->answer().has_estimates());
  EXPECT_TRUE(server_.WaitForMetric("attnd_kde_answers_total{path=\"exact\"}", 40));
  // 4 heads of queries that see 1 to 10 tokens.
  EXPECT_EQ(server_.Metric("attnd_kde_keys_evaluated_sum"), 4 * 55);
  ASSERT_TRUE(Succeeded(session.Step(session.StepOf(tokens_, queries_, 0, 10)).status));
  EXPECT_EQ(server_.Metric("attnd_kde_answers_total{path=\"exact\"}"), 40) << "a replay is none";
}

// Audits change what is stated of errors, which is calibrated after some hundred of them.
TEST_F(Kde, AnswersStayTheSameWhileTheirStatedErrorsAreCalibrated) {
  v1::LayerGroup group = KdeGroup(kShape);
  group.mutable_kde()->set_mode(v1::KdeConfig::INDEX);
  const TestSession session(server_.stub(), "s", ConfigOf({group}));
  constexpr std::int64_t kLong = 4500;
  constexpr std::int64_t kAsked = 512;
  ASSERT_TRUE(Succeeded(session.Append(RandomTokens(kShape, kLong, 2), 0, kLong).status));
  const auto ask = [&](unsigned seed) {
    const std::vector<float> queries = RandomQueries(kShape, kAsked, seed);
    v1::AnswerOptions options;
    options.set_estimates(true);
    Reply<v1::AttendResponse> reply =
        session.Attend(session.AttendOf(kShape, queries, 0, kAsked, options));
    EXPECT_TRUE(Succeeded(reply.status));
    return reply;
  };
  const Reply<v1::AttendResponse> first = ask(100);
  const std::string& calibrated = first->answer().estimates().calibrated();
  EXPECT_GT(std::ranges::count(calibrated, '\0'), kAsked);
  EXPECT_TRUE(server_.WaitForMetric("attnd_queries_total{engine=\"kde\"}", kAsked));
  std::int64_t asked = 1;
  for (; asked < 40; ++asked) {
    const Reply<v1::AttendResponse> other = ask(100 + static_cast<unsigned>(asked));
    if (std::ranges::count(other->answer().estimates().calibrated(), '\0') == 0) break;
  }
  const Reply<v1::AttendResponse> last = ask(100);
  EXPECT_EQ(last->answer().estimates().calibrated(), std::string(calibrated.size(), '\1'));
  EXPECT_EQ(last->answer().outputs().data(), first->answer().outputs().data());
  EXPECT_NE(last->answer().estimates().errors().data(),
            first->answer().estimates().errors().data());
  // 200 of each kv-head.
  EXPECT_TRUE(server_.WaitForMetric("attnd_queries_total{engine=\"kde\"}",
                                    static_cast<double>((asked + 2) * kAsked)));
  EXPECT_GE(server_.Metric("attnd_kde_audited_error_count"), 400);
  EXPECT_LT(server_.Metric("attnd_kde_audits_beyond_stated_total"),
            0.2 * server_.Metric("attnd_kde_audited_error_count"));
}

TEST_F(Kde, PartialsOfTwoContextsMerge) {
  const TestSession first(server_.stub(), "first", ConfigOf({KdeGroup(kShape)}));
  const TestSession second(server_.stub(), "second", ConfigOf({KdeGroup(kShape)}));
  const TestSession empty(server_.stub(), "empty", ConfigOf({KdeGroup(kShape)}));
  ASSERT_TRUE(Succeeded(first.Append(tokens_, 0, 120).status));
  v1::AppendRequest rest = second.AppendOf(tokens_, 120, 180);
  rest.mutable_tokens(0)->set_position(0);
  ASSERT_TRUE(Succeeded(second.Append(rest).status));
  std::vector<v1::Answer> answers;
  for (const TestSession* session : {&first, &second, &empty}) {
    const Reply<v1::AttendResponse> reply = session->Attend(AttendOf(*session, Everything()));
    ASSERT_TRUE(Succeeded(reply.status));
    answers.push_back(reply->answer());
  }
  EXPECT_EQ(answers[2].flags(), std::string(static_cast<std::size_t>(kRows), '\1'));
  std::vector<float> merged(static_cast<std::size_t>(kRows * kShape.value_dim));
  for (std::size_t row = 0; row < static_cast<std::size_t>(kRows); ++row) {
    double weights = 0;
    std::vector<double> sums(5, 0.0);
    for (const v1::Answer& answer : answers) {
      const double weight = std::exp(double{Floats(answer.partial().log_normalizers())[row]});
      const std::vector<float> outputs = Floats(answer.outputs());
      weights += weight;
      for (std::size_t j = 0; j < 5; ++j) sums[j] += weight * double{outputs[5 * row + j]};
    }
    for (std::size_t j = 0; j < 5; ++j) {
      merged[5 * row + j] = static_cast<float>(sums[j] / weights);
    }
  }
  EXPECT_LT(RelativeError(merged, Truth(0, kTokens).outputs), 1e-5);
}

TEST_F(Kde, AnAccuracyOutOfRangeIsRefusedAndNothingIsAppended) {
  const TestSession session(server_.stub(), "s", ConfigOf({KdeGroup(kShape)}));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const v1::Accuracy& accuracy :
       {AccuracyOf(std::nan("")), AccuracyOf(-1e-300), AccuracyOf(kInfinity),
        AccuracyOf(-kInfinity), AccuracyOf(0.1, -1),
        AccuracyOf(0, std::numeric_limits<std::int64_t>::min())}) {
    v1::AttendRequest attend = AttendOf(session);
    *attend.mutable_accuracy() = accuracy;
    EXPECT_TRUE(
        FailedWith(session.Attend(attend).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
    v1::StepRequest step = session.StepOf(tokens_, queries_, 0, 10);
    *step.mutable_accuracy() = accuracy;
    EXPECT_TRUE(
        FailedWith(session.Step(step).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
    v1::CreateSessionRequest create;
    *create.mutable_config() = ConfigOf({KdeGroup(kShape)});
    *create.mutable_config()->mutable_layer_groups(0)->mutable_kde()->mutable_accuracy() = accuracy;
    v1::Session created;
    EXPECT_TRUE(FailedWith(server_.stub().CreateSession(Context().get(), create, &created),
                           StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  }
  EXPECT_EQ(session.Get()->position(), 0);
}

TEST_F(Kde, OtherEnginesTakeNoAccuracyAndTellNoEstimates) {
  const TestSession session(server_.stub(), "s",
                            ConfigOf({ExactGroup(kShape), LinearGroup(kShape)}));
  for (const std::int32_t layer : {0, 1}) {
    v1::AttendRequest attend = AttendOf(session);
    attend.set_layer(layer);
    attend.mutable_options()->set_estimates(true);
    EXPECT_TRUE(
        FailedWith(session.Attend(attend).status, StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
    attend = AttendOf(session);
    attend.set_layer(layer);
    attend.mutable_accuracy();  // even where it asks for nothing
    EXPECT_TRUE(
        FailedWith(session.Attend(attend).status, StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
    v1::StepRequest step = session.StepOf(tokens_, queries_, 0, 10);
    step.mutable_tokens()->set_layer(layer);
    step.mutable_options()->set_estimates(true);
    EXPECT_TRUE(
        FailedWith(session.Step(step).status, StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
    step.mutable_options()->set_estimates(false);
    *step.mutable_accuracy() = AccuracyOf(0.1);
    EXPECT_TRUE(
        FailedWith(session.Step(step).status, StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
  }
  EXPECT_EQ(session.Get()->layer_positions(0), 0);
  EXPECT_EQ(session.Get()->layer_positions(1), 0);
}

TEST_F(Kde, ARetriedStepRepeatsItsEstimatesAndTheAccuracyInForce) {
  v1::LayerGroup group = KdeGroup(kShape);
  *group.mutable_kde()->mutable_accuracy() = AccuracyOf(0.25);
  const TestSession session(server_.stub(), "s", ConfigOf({group}));
  v1::StepRequest request = session.StepOf(tokens_, queries_, 0, 100, Everything());
  const Reply<v1::StepResponse> once = session.Step(request);
  ASSERT_TRUE(Succeeded(once.status));
  EXPECT_FALSE(once->replayed());
  // The session's target, written out, is the same message.
  for (const double target : {0.0, 0.25}) {
    *request.mutable_accuracy() = AccuracyOf(target);
    Reply<v1::StepResponse> again = session.Step(request);
    ASSERT_TRUE(Succeeded(again.status));
    EXPECT_TRUE(again->replayed());
    again.value.set_replayed(false);
    EXPECT_EQ(again->SerializeAsString(), once->SerializeAsString());
  }
  *request.mutable_accuracy() = AccuracyOf(0.5);
  EXPECT_TRUE(FailedWith(session.Step(request).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
  *request.mutable_accuracy() = AccuracyOf(0, 1000);
  EXPECT_TRUE(FailedWith(session.Step(request).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
  request.clear_accuracy();
  request.mutable_options()->set_estimates(false);
  EXPECT_TRUE(FailedWith(session.Step(request).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
}

TEST_F(Kde, QueryPositionsAreOptionalAndChecked) {
  const TestSession session(server_.stub(), "s", ConfigOf({KdeGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, kTokens).status));
  v1::AttendRequest request = AttendOf(session);
  for (std::int64_t i = 0; i < kQueries; ++i) request.add_query_positions(i);
  EXPECT_TRUE(Succeeded(session.Attend(request).status));
  // Beyond the tokens there is nothing of the query's own.
  request.set_query_positions(3, std::numeric_limits<std::int64_t>::max());
  EXPECT_TRUE(Succeeded(session.Attend(request).status));
  request.set_query_positions(3, -1);
  EXPECT_TRUE(
      FailedWith(session.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request.mutable_query_positions()->Truncate(kQueries - 1);
  EXPECT_TRUE(
      FailedWith(session.Attend(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
}

TEST_F(Kde, AnAnswerThatFitsWithoutEstimatesMayNotFitWithThem) {
  server::Options options = TestOptions();
  options.max_response_bytes = 4096;
  TestServer small(options);
  const TestSession session(small.stub(), "s", ConfigOf({KdeGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, 10).status));
  // 80 bytes of outputs a query, 116 of estimates.
  v1::AttendRequest request = session.AttendOf(kShape, queries_, 0, 40);
  EXPECT_TRUE(Succeeded(session.Attend(request).status));
  request.mutable_options()->set_estimates(true);
  const Reply<v1::AttendResponse> refused = session.Attend(request);
  EXPECT_TRUE(FailedWith(refused.status, StatusCode::RESOURCE_EXHAUSTED, v1::RESPONSE_TOO_LARGE));
  EXPECT_EQ(MetadataOf(refused.status)["max_queries"], "18");
  request = session.AttendOf(kShape, queries_, 0, 18);
  request.mutable_options()->set_estimates(true);
  const Reply<v1::AttendResponse> fits = session.Attend(request);
  ASSERT_TRUE(Succeeded(fits.status));
  EXPECT_LE(fits->ByteSizeLong(), 4096U);
}

TEST_F(Kde, AStreamTakesAccuracyAndTellsEstimates) {
  const TestSession session(server_.stub(), "s", ConfigOf({KdeGroup(kShape)}));
  const auto context = Context();
  const auto stream = server_.stub().Stream(context.get());
  v1::StreamRequest request;
  v1::StreamResponse response;
  *request.mutable_step() = session.StepOf(tokens_, queries_, 0, 100, Everything());
  *request.mutable_step()->mutable_accuracy() = AccuracyOf(0.01, 64);
  EXPECT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.status().code(), 0) << response.status().message();
  EXPECT_EQ(response.step().answer().estimates().paths().size(), 400U);
  *request.mutable_attend() = AttendOf(session, Everything());
  *request.mutable_attend()->mutable_accuracy() = AccuracyOf(-1);
  EXPECT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(FailedWith(response.status(), StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  stream->WritesDone();
  EXPECT_TRUE(Succeeded(stream->Finish()));
}

TEST_F(Kde, CertifiedAnswersComeWithErrorsAndBounds) {
  v1::LayerGroup group = KdeGroup(kShape, v1::KdeConfig::CERTIFIED);
  group.mutable_kde()->mutable_accuracy()->set_max_keys(200);  // not all of them
  const TestSession session(server_.stub(), "s", ConfigOf({group}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, kTokens).status));
  const Reply<v1::AttendResponse> reply = session.Attend(AttendOf(session, Everything()));
  ASSERT_TRUE(Succeeded(reply.status));
  const oracle::Answers truth = Truth(0, kTokens);
  EXPECT_LT(RelativeError(Floats(reply->answer().outputs()), truth.outputs), 0.01);
  const v1::Estimates& estimates = reply->answer().estimates();
  EXPECT_EQ(estimates.paths(), std::string(static_cast<std::size_t>(kRows), '\2'));
  EXPECT_EQ(estimates.calibrated(), std::string(static_cast<std::size_t>(kRows), '\0'));
  const std::vector<float> bounds = Floats(estimates.log_normalizer_bounds());
  std::int64_t within = 0;
  for (std::size_t row = 0; row < static_cast<std::size_t>(kRows); ++row) {
    within += double{bounds[2 * row]} <= truth.log_normalizers[row] &&
                      double{bounds[2 * row + 1]} >= truth.log_normalizers[row]
                  ? 1
                  : 0;
  }
  EXPECT_GE(within, 95 * kRows / 100);
  for (const float error : Floats(estimates.errors())) EXPECT_GT(error, 0.0F);
}

TEST_F(Kde, ThePaperAnswersAttendsOnly) {
  v1::LayerGroup group = KdeGroup(kShape, v1::KdeConfig::PAPER);
  group.mutable_kde()->mutable_accuracy()->set_max_keys(128);  // not all of them
  const TestSession session(server_.stub(), "s", ConfigOf({group}));
  EXPECT_TRUE(FailedWith(session.Step(session.StepOf(tokens_, queries_, 0, 10)).status,
                         StatusCode::INVALID_ARGUMENT, v1::UNSUPPORTED));
  EXPECT_EQ(session.Get()->position(), 0);
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, kTokens).status));
  const Reply<v1::AttendResponse> reply = session.Attend(AttendOf(session, Everything()));
  ASSERT_TRUE(Succeeded(reply.status));
  const v1::Answer again = session.Attend(AttendOf(session, Everything()))->answer();
  EXPECT_EQ(again.outputs().data(), reply->answer().outputs().data()) << "of the same batch";
  const v1::Estimates& estimates = reply->answer().estimates();
  EXPECT_EQ(estimates.paths(), std::string(static_cast<std::size_t>(kRows), '\3'));
  EXPECT_EQ(estimates.target_met(), std::string(static_cast<std::size_t>(kRows), '\1'))
      << "of a budget alone there is no target";
  // Values that are noise are no task for a sample of this size, normalizers are.
  EXPECT_LT(RelativeError(Floats(reply->answer().partial().log_normalizers()),
                          Truth(0, kTokens).log_normalizers),
            0.05);
  EXPECT_TRUE(server_.WaitForMetric("attnd_kde_answers_total{path=\"paper\"}", 2 * kRows));
}

}  // namespace
}  // namespace attnd::e2e
