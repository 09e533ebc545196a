// What Attend may be asked for beside outputs, how it says what became of a query, and what it
// refuses.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/attend_fixture.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

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

}  // namespace
}  // namespace attnd::e2e
