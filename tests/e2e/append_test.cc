// Append: positions, retries, atomicity, and the checks before the commit.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {
namespace {

using grpc::StatusCode;

const Shape kShape = {.kv_heads = 2, .query_heads = 4, .key_dim = 8, .value_dim = 6};

class Append : public ::testing::Test {
 protected:
  // The output of a fixed query over a layer: equal bits mean equal contexts.
  std::string Probe(const TestSession& session, std::int32_t layer = 0) {
    v1::AttendRequest request = session.AttendOf(kShape, RandomQueries(kShape, 3, 9), 0, 3);
    request.set_layer(layer);
    const Reply<v1::AttendResponse> reply = session.Attend(request);
    EXPECT_TRUE(Succeeded(reply.status));
    return reply->answer().outputs().data();
  }

  TestServer server_;
  const Tokens tokens_ = RandomTokens(kShape, 400, 1);
};

TEST_F(Append, NeedsGenerationAndPosition) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, 5).status));
  for (const std::uint64_t generation : {std::uint64_t{0}, session.generation() + 1}) {
    v1::AppendRequest request = session.AppendOf(tokens_, 5, 1);
    request.set_generation(generation);
    const grpc::Status status = session.Append(request).status;
    EXPECT_TRUE(FailedWith(status, StatusCode::ABORTED, v1::STALE_GENERATION));
    EXPECT_EQ(MetadataOf(status)["generation"], std::to_string(session.generation()));
    EXPECT_EQ(MetadataOf(status)["position.0"], "5");
  }
  v1::AppendRequest request = session.AppendOf(tokens_, 5, 1);
  request.mutable_tokens(0)->clear_position();
  EXPECT_TRUE(
      FailedWith(session.Append(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  request.mutable_tokens(0)->set_position(-1);
  EXPECT_TRUE(
      FailedWith(session.Append(request).status, StatusCode::INVALID_ARGUMENT, v1::INVALID_FIELD));
  EXPECT_EQ(session.Get()->position(), 5);
}

TEST_F(Append, ALostAcknowledgementFollowedByARetryCountsOnce) {
  const TestSession session(server_.stub(), "s", ConfigOf({LinearGroup(kShape)}));
  const TestSession plain(server_.stub(), "plain", ConfigOf({LinearGroup(kShape)}));
  for (std::int64_t first = 0; first < 400; first += 50) {
    const Reply<v1::AppendResponse> once = session.Append(tokens_, first, 50);
    ASSERT_TRUE(Succeeded(once.status));
    EXPECT_FALSE(once->replayed());
    for (int retry = 0; retry < 3; ++retry) {
      const Reply<v1::AppendResponse> again = session.Append(tokens_, first, 50);
      ASSERT_TRUE(Succeeded(again.status));
      EXPECT_TRUE(again->replayed());
      EXPECT_EQ(again->positions(0).position(), first + 50);
    }
    ASSERT_TRUE(Succeeded(plain.Append(tokens_, first, 50).status));
  }
  // Also of one that is not the last.
  EXPECT_TRUE(session.Append(tokens_, 100, 50)->replayed());
  EXPECT_EQ(session.Get()->position(), 400);
  EXPECT_EQ(Probe(session), Probe(plain));
}

TEST_F(Append, OtherContentAtAFilledPlaceIsAMismatch) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, 50).status));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 50, 50).status));
  const std::string before = Probe(session);

  Tokens other = tokens_;
  other.values[10] += 1;
  EXPECT_TRUE(
      FailedWith(session.Append(other, 0, 50).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
  EXPECT_TRUE(
      FailedWith(session.Append(tokens_, 0, 49).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
  other = tokens_;
  other.mask.assign(400, 1);
  EXPECT_TRUE(session.Append(other, 0, 50)->replayed()) << "a mask of ones is no mask";
  other.mask[3] = 0;
  EXPECT_TRUE(
      FailedWith(session.Append(other, 0, 50).status, StatusCode::ABORTED, v1::REPLAY_MISMATCH));
  EXPECT_EQ(Probe(session), before);
}

TEST_F(Append, ElsewhereTellsTheCurrentPosition) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, 50).status));
  for (const std::int64_t position : {std::int64_t{7}, std::int64_t{51}, std::int64_t{1} << 40}) {
    v1::AppendRequest request = session.AppendOf(tokens_, 0, 5);
    request.mutable_tokens(0)->set_position(position);
    const grpc::Status status = session.Append(request).status;
    EXPECT_TRUE(FailedWith(status, StatusCode::OUT_OF_RANGE, v1::WRONG_POSITION));
    EXPECT_EQ(MetadataOf(status)["layer"], "0");
    EXPECT_EQ(MetadataOf(status)["position"], "50");
  }
  EXPECT_EQ(session.Get()->position(), 50);
}

TEST_F(Append, OnlyRecentMessagesAreRememberedAndNoneIsOverwritten) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  for (std::int64_t i = 0; i < 200; ++i)
    ASSERT_TRUE(Succeeded(session.Append(tokens_, i, 1).status));
  EXPECT_TRUE(session.Append(tokens_, 199, 1)->replayed());
  EXPECT_TRUE(session.Append(tokens_, 80, 1)->replayed());
  EXPECT_TRUE(FailedWith(session.Append(tokens_, 0, 1).status, StatusCode::OUT_OF_RANGE,
                         v1::WRONG_POSITION));
}

class MultiLayer : public Append {
 protected:
  MultiLayer() {
    v1::LayerGroup exact = ExactGroup(kShape);
    exact.set_count(2);
    session_ = std::make_unique<TestSession>(server_.stub(), "layers",
                                             ConfigOf({exact, LinearGroup(kShape)}));
  }
  v1::AppendRequest All(std::int64_t first, std::int64_t count) const {
    v1::AppendRequest request;
    request.set_session_id(session_->id());
    request.set_generation(session_->generation());
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      *request.add_tokens() = Slice(tokens_, first, count, layer);
    }
    return request;
  }

  std::unique_ptr<TestSession> session_;
};

TEST_F(MultiLayer, AppendsAreReplayedAsAWhole) {
  ASSERT_TRUE(Succeeded(session_->Append(All(0, 70)).status));
  const Reply<v1::AppendResponse> again = session_->Append(All(0, 70));
  ASSERT_TRUE(Succeeded(again.status));
  EXPECT_TRUE(again->replayed());
  ASSERT_EQ(again->positions_size(), 3);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(again->positions(layer).layer(), layer);
    EXPECT_EQ(again->positions(layer).position(), 70);
  }
  // One layer goes on: the retry is still known, a part of it is not a retry.
  ASSERT_TRUE(Succeeded(session_->Append(tokens_, 70, 10).status));
  EXPECT_TRUE(session_->Append(All(0, 70))->replayed());
  EXPECT_TRUE(FailedWith(session_->Append(tokens_, 0, 70).status, StatusCode::ABORTED,
                         v1::REPLAY_MISMATCH));
  EXPECT_EQ(session_->Get()->position(), 70);
  EXPECT_EQ(session_->Get()->layer_positions(0), 80);
}

TEST_F(MultiLayer, ABadSliceLeavesNothingOfTheOthers) {
  ASSERT_TRUE(Succeeded(session_->Append(All(0, 70)).status));
  const std::vector<std::string> before = {Probe(*session_, 0), Probe(*session_, 1),
                                           Probe(*session_, 2)};
  const float nan = std::numeric_limits<float>::quiet_NaN();

  v1::AppendRequest request = All(70, 100);
  request.mutable_tokens(2)->mutable_values()->mutable_data()->replace(
      1000, 4, std::string(reinterpret_cast<const char*>(&nan), 4));
  EXPECT_TRUE(
      FailedWith(session_->Append(request).status, StatusCode::INVALID_ARGUMENT, v1::NOT_FINITE));

  request = All(70, 100);
  request.mutable_tokens(1)->set_position(60);
  const grpc::Status status = session_->Append(request).status;
  EXPECT_TRUE(FailedWith(status, StatusCode::OUT_OF_RANGE, v1::WRONG_POSITION));
  EXPECT_EQ(MetadataOf(status)["layer"], "1");
  EXPECT_EQ(MetadataOf(status)["position"], "70");

  request = All(70, 100);
  request.mutable_tokens(2)->set_layer(0);
  EXPECT_TRUE(FailedWith(session_->Append(request).status, StatusCode::INVALID_ARGUMENT,
                         v1::INVALID_FIELD));
  request = All(70, 100);
  request.mutable_tokens(2)->set_layer(3);
  EXPECT_TRUE(FailedWith(session_->Append(request).status, StatusCode::INVALID_ARGUMENT,
                         v1::INVALID_FIELD));
  request.clear_tokens();
  EXPECT_TRUE(FailedWith(session_->Append(request).status, StatusCode::INVALID_ARGUMENT,
                         v1::INVALID_FIELD));

  EXPECT_EQ(before, (std::vector<std::string>{Probe(*session_, 0), Probe(*session_, 1),
                                              Probe(*session_, 2)}));
  EXPECT_EQ(session_->Get()->layer_positions(0), 70);
  ASSERT_TRUE(Succeeded(session_->Append(All(70, 100)).status));
  EXPECT_EQ(session_->Get()->position(), 170);
}

TEST_F(Append, TensorsThatDoNotFitAreRefusedByName) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  struct Case {
    const char* field;
    std::function<void(v1::LayerTokens&)> break_it;
  };
  const std::vector<Case> cases = {
      {"keys.dtype", [](v1::LayerTokens& t) { t.mutable_keys()->clear_dtype(); }},
      {"keys.dtype",
       [](v1::LayerTokens& t) { t.mutable_keys()->set_dtype(static_cast<v1::DataType>(99)); }},
      {"keys.shape", [](v1::LayerTokens& t) { t.mutable_keys()->clear_shape(); }},
      {"keys.shape", [](v1::LayerTokens& t) { t.mutable_keys()->add_shape(1); }},
      {"keys.shape", [](v1::LayerTokens& t) { t.mutable_keys()->set_shape(1, 1); }},
      {"values.shape", [](v1::LayerTokens& t) { t.mutable_values()->set_shape(2, 8); }},
      {"keys.shape[0]", [](v1::LayerTokens& t) { t.mutable_keys()->set_shape(0, 0); }},
      {"keys.shape[0]", [](v1::LayerTokens& t) { t.mutable_keys()->set_shape(0, -5); }},
      {"keys.data",
       [](v1::LayerTokens& t) { t.mutable_keys()->set_shape(0, std::int64_t{1} << 40); }},
      {"keys.data",
       [](v1::LayerTokens& t) {
         t.mutable_keys()->set_shape(0, std::numeric_limits<std::int64_t>::max());
       }},
      {"keys.data",
       [](v1::LayerTokens& t) { t.mutable_keys()->set_shape(0, std::int64_t{1} << 60); }},
      {"values.data", [](v1::LayerTokens& t) { t.mutable_values()->mutable_data()->pop_back(); }},
      {"values.data", [](v1::LayerTokens& t) { t.mutable_values()->clear_data(); }},
      {"values",
       [this](v1::LayerTokens& t) { *t.mutable_values() = Slice(tokens_, 0, 4).values(); }},
      {"mask", [](v1::LayerTokens& t) { t.set_mask("\1"); }},
      {"mask[2]", [](v1::LayerTokens& t) { t.set_mask("\1\1\2\1\1"); }},
      {"keys.data", [](v1::LayerTokens& t) { t.mutable_keys()->set_dtype(v1::F16); }},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    v1::AppendRequest request = session.AppendOf(tokens_, 0, 5);
    cases[i].break_it(*request.mutable_tokens(0));
    const grpc::Status status = session.Append(request).status;
    EXPECT_TRUE(FailedWith(status, StatusCode::INVALID_ARGUMENT, v1::BAD_TENSOR)) << "case " << i;
    EXPECT_NE(status.error_message().find(std::string("tokens[0].") + cases[i].field),
              std::string::npos)
        << status.error_message();
    EXPECT_LT(status.error_message().size(), 300U);
  }
  EXPECT_EQ(session.Get()->position(), 0);
}

TEST_F(Append, MaskedTokensTakeAPositionAndMustBeFinite) {
  const TestSession session(server_.stub(), "s", ConfigOf({ExactGroup(kShape)}));
  Tokens masked = tokens_;
  masked.mask.assign(400, 1);
  masked.mask[1] = 0;
  masked.keys[16] = std::numeric_limits<float>::infinity();  // of token 1
  EXPECT_TRUE(FailedWith(session.Append(masked, 0, 5).status, StatusCode::INVALID_ARGUMENT,
                         v1::NOT_FINITE));
  masked.keys[16] = 1e30F;
  ASSERT_TRUE(Succeeded(session.Append(masked, 0, 5).status));
  EXPECT_EQ(session.Get()->position(), 5);
  // What a masked row holds is ignored, also by the retry's digest.
  masked.keys[16] = 5;
  EXPECT_TRUE(session.Append(masked, 0, 5)->replayed());
}

// A finite input must not poison a session: it is refused before the commit wherever in a block it
// comes, and the session goes on as if it had never come.
TEST_F(Append, FeatureOverflowIsRefusedWhereverItStands) {
  const TestSession plain(server_.stub(), "plain",
                          ConfigOf({LinearGroup(kShape, v1::SQUARED_RELU)}));
  ASSERT_TRUE(Succeeded(plain.Append(tokens_, 0, 400).status));
  const std::string want = Probe(plain);

  int id = 0;
  for (const std::int64_t good : {0, 1, 30, 63, 64, 65, 128, 150}) {
    for (const std::int64_t bad : {0, 1, 40, 64, 100}) {
      const TestSession session(server_.stub(), "s" + std::to_string(id++),
                                ConfigOf({LinearGroup(kShape, v1::SQUARED_RELU)}));
      if (good > 0) {
        ASSERT_TRUE(Succeeded(session.Append(tokens_, 0, good).status));
      }
      Tokens poisoned = tokens_;
      poisoned.keys[static_cast<std::size_t>((good + bad) * 16)] = 1e25F;
      EXPECT_TRUE(FailedWith(session.Append(poisoned, good, bad + 20).status,
                             StatusCode::INVALID_ARGUMENT, v1::FEATURE_OVERFLOW))
          << good << " good, then the bad one at " << bad;
      EXPECT_EQ(session.Get()->position(), good);
      ASSERT_TRUE(Succeeded(session.Append(tokens_, good, 400 - good).status));
      EXPECT_EQ(Probe(session), want) << good << " good, then the bad one at " << bad;
    }
  }
}

// Two tokens that fit alone and not together: the second one is refused, in the open block too.
TEST_F(Append, SumsThatOverflowAreRefusedBeforeTheyAreSealed) {
  const TestSession session(server_.stub(), "s", ConfigOf({LinearGroup(kShape, v1::SQUARED_RELU)}));
  Tokens large = tokens_;
  for (std::size_t i = 0; i < 4; ++i) {
    large.keys[i * 16] = 1.5e19F;  // squared: 2.25e38, two of them are too many
    large.values[i * 12] = 1;
  }
  ASSERT_TRUE(Succeeded(session.Append(large, 0, 1).status));
  EXPECT_TRUE(FailedWith(session.Append(large, 1, 1).status, StatusCode::INVALID_ARGUMENT,
                         v1::FEATURE_OVERFLOW));
  EXPECT_EQ(session.Get()->position(), 1);
  // The same in different blocks: the totals count.
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 1, 99).status));
  for (const std::int64_t count : {1, 28, 29, 100}) {
    Tokens late = tokens_;
    late.keys[std::size_t{100} * 16] = 1.5e19F;
    EXPECT_TRUE(FailedWith(session.Append(late, 100, count).status, StatusCode::INVALID_ARGUMENT,
                           v1::FEATURE_OVERFLOW))
        << count;
  }
  ASSERT_TRUE(Succeeded(session.Append(tokens_, 100, 300).status));
  EXPECT_EQ(session.Get()->position(), 400);
}

TEST_F(Append, NarrowTokensAreThoseOfTheirWideNumbers) {
  for (const v1::DataType type : {v1::F16, v1::BF16}) {
    const std::string name = v1::DataType_Name(type);
    const TestSession narrow(server_.stub(), name, ConfigOf({ExactGroup(kShape)}));
    const TestSession wide(server_.stub(), name + "-wide", ConfigOf({ExactGroup(kShape)}));
    v1::AppendRequest request = narrow.AppendOf(tokens_, 0, 0);
    *request.mutable_tokens(0) = Slice(tokens_, 0, 100, 0, type);
    ASSERT_TRUE(Succeeded(narrow.Append(request).status));

    Tokens rounded = tokens_;
    rounded.keys = Floats(request.tokens(0).keys());
    rounded.values = Floats(request.tokens(0).values());
    ASSERT_TRUE(Succeeded(wide.Append(rounded, 0, 100).status));
    EXPECT_EQ(Probe(narrow), Probe(wide)) << name;
    EXPECT_TRUE(narrow.Append(rounded, 0, 100)->replayed()) << "equal as stored";
  }
}

}  // namespace
}  // namespace attnd::e2e
