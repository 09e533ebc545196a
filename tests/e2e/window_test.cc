// Sliding windows over the wire: what is answered, what is charged, and what is refused.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape = {.kv_heads = 2, .query_heads = 4, .key_dim = 16, .value_dim = 12};

v1::LayerGroup Windowed(v1::LayerGroup group, std::int64_t window) {
  group.set_window_tokens(window);
  return group;
}

oracle::Context ContextOf(const Tokens& tokens, std::int64_t position, double scale,
                          const std::vector<std::uint8_t>& mask) {
  oracle::Context context;
  context.kv_heads = kShape.kv_heads;
  context.query_heads = kShape.query_heads;
  context.key_dim = kShape.key_dim;
  context.value_dim = kShape.value_dim;
  context.scale = scale;
  context.tokens = position;
  context.keys = tokens.keys.data();
  context.values = tokens.values.data();
  context.mask = mask.data();
  return context;
}

struct Case {
  const char* name;
  v1::LayerGroup group;
  std::int64_t window;
};

std::vector<Case> Cases() {
  return {{"exact", ExactGroup(kShape), 100},
          {"exact_one_token", ExactGroup(kShape), 1},
          {"elu", LinearGroup(kShape), 192},
          {"elu_one_block", LinearGroup(kShape), 64}};
}

class Window : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t kTokens = 900;

  bool exact() const { return GetParam().group.has_exact(); }

  // What the query of token `position` - 1 is to get.
  std::vector<double> Truth(std::int64_t position) const {
    const std::int64_t first =
        exact() ? position - GetParam().window : (position - 1) / 64 * 64 + 64 - GetParam().window;
    std::vector<std::uint8_t> mask(kTokens, 1);
    std::fill_n(mask.begin(), std::max<std::int64_t>(first, 0), std::uint8_t{0});
    const float* row = queries_.data() + (position - 1) * kShape.query_heads * kShape.key_dim;
    const oracle::Queries queries = {row, oracle::AllVisible(1, position)};
    const oracle::Context context = ContextOf(tokens_, position, exact() ? 0.25 : 1.0, mask);
    return exact()
               ? oracle::Softmax(context, queries).outputs
               : oracle::Linear(context, queries, oracle::FeatureMap::kEluPlusOne, 0, true).outputs;
  }

  TestServer server_;
  const Tokens tokens_ = RandomTokens(kShape, kTokens, 7);
  const std::vector<float> queries_ = RandomQueries(kShape, kTokens, 7);
};

TEST_P(Window, StepsAndAttendsSeeTheNewestTokens) {
  const TestSession session(server_.stub(), "s",
                            ConfigOf({Windowed(GetParam().group, GetParam().window)}));
  std::mt19937 random(8);
  const std::size_t row = Floats(QueryTensor(kShape, queries_, 0, 1)).size() /
                          static_cast<std::size_t>(kShape.key_dim * kShape.query_heads) *
                          static_cast<std::size_t>(kShape.value_dim * kShape.query_heads);
  for (std::int64_t position = 0; position < kTokens;) {
    const std::int64_t count =
        std::min<std::int64_t>(1 + static_cast<std::int64_t>(random()) % 90, kTokens - position);
    if (random() % 2 == 0) {
      const auto step = session.Step(session.StepOf(tokens_, queries_, position, count));
      ASSERT_TRUE(Succeeded(step.status));
      const std::vector<float> outputs = Floats(step->answer().outputs());
      for (std::int64_t i = 0; i < count; i += 13) {
        const auto from = outputs.begin() + i * static_cast<std::int64_t>(row);
        EXPECT_LT(
            RelativeError({from, from + static_cast<std::int64_t>(row)}, Truth(position + i + 1)),
            5e-6)
            << "Step at " << position + i + 1;
      }
    } else {
      ASSERT_TRUE(Succeeded(session.Append(tokens_, position, count).status));
    }
    position += count;
    const auto attend = session.Attend(session.AttendOf(kShape, queries_, position - 1, 1));
    ASSERT_TRUE(Succeeded(attend.status));
    EXPECT_EQ(attend->position(), position) << "all tokens count";
    EXPECT_LT(RelativeError(Floats(attend->answer().outputs()), Truth(position)), 5e-6)
        << "Attend at " << position;
  }
}

TEST_P(Window, RetriesOfRememberedMessagesAreReplayed) {
  const TestSession session(server_.stub(), "s",
                            ConfigOf({Windowed(GetParam().group, GetParam().window)}));
  const v1::AppendRequest append = session.AppendOf(tokens_, 0, 300);
  ASSERT_TRUE(Succeeded(session.Append(append).status));
  const v1::StepRequest step = session.StepOf(tokens_, queries_, 300, 400);
  const auto first = session.Step(step);
  ASSERT_TRUE(Succeeded(first.status));
  const auto again = session.Step(step);
  ASSERT_TRUE(Succeeded(again.status));
  EXPECT_TRUE(again->replayed());
  EXPECT_EQ(again->answer().outputs().data(), first->answer().outputs().data());
  // Its tokens have left the window long ago.
  const auto old = session.Append(append);
  ASSERT_TRUE(Succeeded(old.status));
  EXPECT_TRUE(old->replayed());
  EXPECT_EQ(session.Get()->position(), 700);
}

INSTANTIATE_TEST_SUITE_P(All, Window, ::testing::ValuesIn(Cases()),
                         [](const auto& param) { return std::string(param.param.name); });

// A context of 100,000 tokens takes 100 MB of an exact session and the server has 8.
TEST(WindowMemory, ASessionIsChargedForItsWindowHoweverLongItsContext) {
  server::Options options = TestOptions();
  options.max_state_bytes = 8 << 20;
  for (const v1::LayerGroup& group :
       {Windowed(ExactGroup(kShape), 4096), Windowed(LinearGroup(kShape), 16384)}) {
    TestServer server(options);
    const TestSession session(server.stub(), "s", ConfigOf({group}));
    const Tokens tokens = RandomTokens(kShape, 1000, 9);
    std::int64_t largest = 0;
    for (std::int64_t position = 0; position < 100'000; position += 1000) {
      v1::AppendRequest append = session.AppendOf(tokens, 0, 1000);
      append.mutable_tokens(0)->set_position(position);
      ASSERT_TRUE(Succeeded(session.Append(append).status)) << position;
      if (position % 9000 == 0) largest = std::max(largest, session.Get()->state_bytes());
    }
    const auto got = session.Get();
    EXPECT_EQ(got->position(), 100'000);
    EXPECT_EQ(got->config().layer_groups(0).window_tokens(), group.window_tokens());
    const v1::EngineFacts& facts = got->engine_facts(0);
    EXPECT_GT(facts.bytes_per_token(), 0);
    constexpr std::int64_t kSessionBytes = 64 << 10;
    EXPECT_LE(largest, facts.fixed_bytes() + kSessionBytes +
                           (group.window_tokens() * 3 / 2 + 192) * facts.bytes_per_token());
  }
}

TEST(WindowConfig, WhatCannotBeIsRefusedByName) {
  TestServer server;
  const auto create = [&](v1::LayerGroup group, std::int64_t window) {
    v1::CreateSessionRequest request;
    request.set_session_id("s");
    *request.mutable_config() = ConfigOf({Windowed(std::move(group), window)});
    v1::Session session;
    return server.stub().CreateSession(Context().get(), request, &session);
  };
  for (const std::int64_t window : {std::int64_t{-1}, std::int64_t{1} << 62, INT64_MIN}) {
    for (const v1::LayerGroup& group : {ExactGroup(kShape), LinearGroup(kShape)}) {
      const grpc::Status status = create(group, window);
      EXPECT_TRUE(FailedWith(status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
      EXPECT_NE(status.error_message().find("window_tokens is " + std::to_string(window)),
                std::string::npos)
          << status.error_message();
    }
  }
  const grpc::Status status = create(LinearGroup(kShape), 65);
  EXPECT_TRUE(FailedWith(status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  EXPECT_NE(status.error_message().find("multiple of 64"), std::string::npos);
  EXPECT_TRUE(Succeeded(create(LinearGroup(kShape), 1 << 28)));
  EXPECT_TRUE(
      FailedWith(create(LinearGroup(kShape), 0), StatusCode::ALREADY_EXISTS, v1::SESSION_EXISTS))
      << "the window is part of what a session is";
}

}  // namespace
}  // namespace attnd::e2e
