#include "client/session.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/client/fake_error.h"
#include "tests/client/session_fixture.h"

namespace attnd::client {
namespace {

class SessionCalls : public SessionFixture {};

TEST_F(SessionCalls, LargeCallsStayUnderTheLimitsAndAnswerTheSame) {
  CreateSession(1, 2);  // default limits: everything below goes in one message
  const TestTokens data(0, 2000, 2);
  ASSERT_TRUE(session_->Append(data.tokens()).ok());
  AttendOptions options;
  options.answer.set_flags(true);
  options.answer.set_top_k(2);
  const auto whole = session_->Attend(0, data.query_tensor(), options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->pieces.size(), 1U);

  FakeServer small;
  small.limits.set_max_message_bytes(16 << 10);
  small.limits.set_max_response_bytes(24 << 10);
  ClientOptions client_options;
  client_options.target = small.target();
  const auto client = Client::Connect(client_options);
  ASSERT_TRUE(client.ok());
  const auto session = client.value()->CreateSession(Config(1, 2));
  ASSERT_TRUE(session.ok());
  const auto appended = (*session)->Append(data.tokens());
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_GT(appended->messages, 5);
  EXPECT_EQ(appended->positions, (std::vector<std::int64_t>{2000}));
  const auto cut = (*session)->Attend(0, data.query_tensor(), options);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_GT(cut->pieces.size(), 5U);
  EXPECT_EQ(cut->position, 2000);
  EXPECT_EQ(cut->answer.SerializeAsString(), whole->answer.SerializeAsString());
  EXPECT_LE(small.seen().largest_request, 16 << 10);
  EXPECT_LE(small.seen().largest_answer, 24 << 10);
}

TEST_F(SessionCalls, ACutStepAnswersLikeAWholeOne) {
  CreateSession();
  const TestTokens data(0, 3000);
  const auto whole = session_->Step(data.tokens(), data.query_tensor());
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->messages, 1);

  FakeServer small;
  small.limits.set_max_message_bytes(20 << 10);
  small.limits.set_max_response_bytes(8 << 10);
  ClientOptions options;
  options.target = small.target();
  const auto session = Client::Connect(options).value()->CreateSession(Config());
  ASSERT_TRUE(session.ok());
  const auto cut = (*session)->Step(data.tokens(), data.query_tensor());
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_GT(cut->messages, 5);
  EXPECT_EQ(cut->position, 3000);
  EXPECT_EQ(cut->answer.SerializeAsString(), whole->answer.SerializeAsString());
  EXPECT_LE(small.seen().largest_request, 20 << 10);
  EXPECT_LE(small.seen().largest_answer, 8 << 10);
}

TEST_F(SessionCalls, EstimatesOfACutCallAreThoseOfAWholeOne) {
  FakeServer small;
  small.limits.set_max_message_bytes(16 << 10);
  small.limits.set_max_response_bytes(24 << 10);
  const TestTokens data(0, 1500, 2);
  AttendOptions attend;
  attend.answer.set_estimates(true);
  attend.accuracy.emplace().set_target_error(0.25);
  StepOptions step;
  step.answer = attend.answer;
  step.accuracy = attend.accuracy;
  std::vector<std::string> answers;
  for (const std::string& target : {server_.target(), small.target()}) {
    ClientOptions options;
    options.target = target;
    const auto session = Client::Connect(options).value()->CreateSession(Config(1, 2));
    ASSERT_TRUE(session.ok()) << session.status();
    const auto stepped = (*session)->Step(data.tokens(), data.query_tensor(), step);
    ASSERT_TRUE(stepped.ok()) << stepped.status();
    const auto attended = (*session)->Attend(0, data.query_tensor(), attend);
    ASSERT_TRUE(attended.ok()) << attended.status();
    EXPECT_EQ(attended->pieces.size() > 1, target == small.target());
    for (const v1::Answer& answer : {stepped->answer, attended->answer}) {
      const v1::Estimates& estimates = answer.estimates();
      EXPECT_EQ(estimates.coverage(), 0.95);
      EXPECT_EQ(ToFloats(estimates.errors()).value(), std::vector<float>(3000, 0.25F));
      EXPECT_EQ(estimates.log_normalizer_bounds().shape(0), 1500);
      EXPECT_EQ(estimates.log_normalizer_bounds().data().size(), 3000U * 2 * sizeof(float));
      EXPECT_EQ(estimates.keys_evaluated(2999), 1500);
      EXPECT_EQ(ToFloats(estimates.exact_masses()).value(), std::vector<float>(3000, 0.5F));
      EXPECT_EQ(estimates.paths().size(), 3000U);
      EXPECT_EQ(estimates.calibrated(), std::string(3000, '\1'));
      EXPECT_EQ(estimates.target_met().size(), 3000U);
      answers.push_back(answer.SerializeAsString());
    }
  }
  EXPECT_EQ(answers[2] == answers[0], true) << "Step";
  EXPECT_EQ(answers[3] == answers[1], true) << "Attend";
}

TEST_F(SessionCalls, ACallWhoseAnswersDependOnItsWholeBatchIsNotCut) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  v1::SessionConfig config = Config();
  config.mutable_layer_groups(0)->mutable_kde()->set_mode(v1::KdeConfig::PAPER);
  auto session = client_->CreateSession(config);
  ASSERT_TRUE(session.ok()) << session.status();
  const TestTokens tokens(0, 10);
  ASSERT_TRUE((*session)->Append(tokens.tokens()).ok());
  // 1.6 MB, more than a message is meant to have and less than the server takes.
  const TestTokens some(0, 100'000);
  const auto whole = (*session)->Attend(0, some.query_tensor());
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->pieces.size(), 1U);
  const TestTokens many(0, 600'000);
  const auto refused = (*session)->Attend(0, many.query_tensor());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.status().message()).find("queries: 600000 rows; a message holds"),
            std::string::npos)
      << refused.status();
  // Nor is it made smaller at the server's word.
  server_.extra_answer_bytes_per_row = 1000;
  EXPECT_EQ(ErrorReasonOf((*session)->Attend(0, some.query_tensor()).status()),
            "RESPONSE_TOO_LARGE");
}

TEST_F(SessionCalls, TakesTheServersWordForHowManyQueriesFit) {
  server_.extra_answer_bytes_per_row = 100'000;
  CreateSession();
  const TestTokens data(0, 300);
  const auto step = session_->Step(data.tokens(), data.query_tensor());
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->position, 300);
  EXPECT_EQ(step->answer.outputs().shape(0), 300);
  const auto attend = session_->Attend(0, data.query_tensor());
  ASSERT_TRUE(attend.ok()) << attend.status();
  EXPECT_EQ(attend->pieces.size(), 4U);  // 83 queries of 100,012 bytes fit 8 MiB
}

TEST_F(SessionCalls, ALostAnswerIsReplayedAndNotCountedTwice) {
  CreateSession();
  const TestTokens data(0, 10);
  server_.DropNextAnswers(3);
  const auto appended = session_->Append(data.tokens());
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_EQ(appended->replayed_messages, 1);
  EXPECT_EQ(server_.seen().applied_messages, 1);
  EXPECT_EQ(server_.PositionOf(session_->id()), 10);
  EXPECT_EQ(session_->position(), 10);
  EXPECT_EQ(clock_->sleeps().size(), 3U);
}

TEST_F(SessionCalls, ALostStepIsReplayedWithItsFirstAnswer) {
  CreateSession();
  const TestTokens data(0, 10);
  FakeServer reference_server;
  server_.DropNextAnswers(2);
  const auto step = session_->Step(data.tokens(), data.query_tensor());
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->replayed_messages, 1);
  EXPECT_EQ(server_.PositionOf(session_->id()), 10);

  const auto fresh = client_->CreateSession(Config());
  ASSERT_TRUE(fresh.ok());
  const auto once = (*fresh)->Step(data.tokens(), data.query_tensor());
  ASSERT_TRUE(once.ok());
  EXPECT_EQ(once->replayed_messages, 0);
  EXPECT_EQ(once->answer.SerializeAsString(), step->answer.SerializeAsString());
}

TEST_F(SessionCalls, RandomlyLostAnswersNeverDuplicateOrLoseTokens) {
  CreateSession();
  const std::int64_t total = 200;
  const TestTokens all(0, total);
  std::uint32_t random = 1;
  for (std::int64_t first = 0; first < total;) {
    random = random * 1664525 + 1013904223;
    const std::int64_t count = std::min<std::int64_t>(1 + (random >> 24) % 9, total - first);
    server_.DropNextAnswers(static_cast<int>((random >> 16) % 4));
    const TestTokens piece(first, count);
    if (((random >> 12) & 1) != 0) {
      ASSERT_TRUE(session_->Step(piece.tokens(), piece.query_tensor()).ok());
    } else {
      ASSERT_TRUE(session_->Append(piece.tokens()).ok());
    }
    first += count;
    ASSERT_EQ(session_->position(), first);
    ASSERT_EQ(server_.PositionOf(session_->id()), first);
  }
  EXPECT_GT(server_.seen().replayed_messages, 5);
  server_.DropNextAnswers(0);
  const auto fresh = client_->CreateSession(Config());
  ASSERT_TRUE((*fresh)->Append(all.tokens()).ok());
  EXPECT_EQ((*fresh)->Attend(0, all.query_tensor())->answer.SerializeAsString(),
            session_->Attend(0, all.query_tensor())->answer.SerializeAsString());
}

TEST_F(SessionCalls, AnUnknownOutcomeCanBeRepeatedByTheCaller) {
  CreateSession();
  const TestTokens data(0, 10);
  server_.DropNextAnswers(100);
  const auto lost = session_->Append(data.tokens());
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(session_->position(), 0);
  EXPECT_EQ(server_.PositionOf(session_->id()), 10);
  server_.DropNextAnswers(0);

  // Other tokens in their place are refused, the same ones are recognised.
  EXPECT_EQ(ErrorReasonOf(session_->Append(TestTokens(50, 10).tokens()).status()),
            "REPLAY_MISMATCH");
  const auto again = session_->Append(data.tokens());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->replayed_messages, 1);
  EXPECT_EQ(session_->position(), 10);
  EXPECT_EQ(server_.PositionOf(session_->id()), 10);
}

TEST_F(SessionCalls, RefreshLearnsTheOutcome) {
  CreateSession();
  server_.DropNextAnswers(100);
  EXPECT_FALSE(session_->Append(TestTokens(0, 10).tokens()).ok());
  server_.DropNextAnswers(0);
  ASSERT_TRUE(session_->Refresh().ok());
  EXPECT_EQ(session_->position(), 10);
  EXPECT_TRUE(session_->Append(TestTokens(10, 1).tokens()).ok());
}

TEST_F(SessionCalls, KnowsUpToWhereItsTokensAreDurable) {
  Connect();
  v1::SessionConfig config = Config(2);
  config.set_durability(v1::CHECKPOINTED);
  session_ = client_->CreateSession(config).value();
  const auto append = session_->Append(TestTokens(0, 10).tokens(1));
  ASSERT_TRUE(append.ok()) << append.status();
  EXPECT_EQ(append->durable_positions, std::vector<std::int64_t>{0});
  ASSERT_TRUE(session_->Flush().ok());
  EXPECT_EQ(session_->durable_position(0), 0);
  EXPECT_EQ(session_->durable_position(1), 10);
  const TestTokens more(10, 2);
  const auto step = session_->Step(more.tokens(1), more.query_tensor());
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->position, 12);
  EXPECT_EQ(step->durable_position, 10);
  EXPECT_EQ(session_->Append(TestTokens(12, 1).tokens(1))->durable_positions[0], 10);
  // Another process has the session flushed.
  ASSERT_TRUE(client_->FlushSession(session_->id()).ok());
  EXPECT_EQ(session_->durable_position(1), 10);
  ASSERT_TRUE(session_->Refresh().ok());
  EXPECT_EQ(session_->durable_position(1), 13);
}

TEST_F(SessionCalls, AFlushOfAnotherLifeOfTheSessionIsNotTakenForThisOne) {
  Connect();
  v1::SessionConfig config = Config();
  config.set_durability(v1::CHECKPOINTED);
  session_ = client_->CreateSession(config).value();
  ASSERT_TRUE(session_->Append(TestTokens(0, 10).tokens()).ok());
  server_.RaiseGenerations();
  EXPECT_EQ(session_->Flush().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(session_->durable_position(), 0);
}

TEST_F(SessionCalls, ALoggedSessionIsDurableAsFarAsItIsAcknowledged) {
  Connect();
  v1::SessionConfig config = Config();
  config.set_durability(v1::LOGGED);
  session_ = client_->CreateSession(config).value();
  ASSERT_TRUE(session_->Append(TestTokens(0, 10).tokens()).ok());
  EXPECT_EQ(session_->durable_position(), 10);
  const TestTokens more(10, 2);
  ASSERT_TRUE(session_->Step(more.tokens(), more.query_tensor()).ok());
  EXPECT_EQ(session_->durable_position(), 12);

  const auto stream = session_->OpenStream().value();
  const auto append = stream->Append(TestTokens(12, 3).tokens()).get();
  ASSERT_TRUE(append.ok()) << append.status();
  EXPECT_EQ(append->durable_positions, std::vector<std::int64_t>{15});
  EXPECT_EQ(session_->durable_position(), 15);
  const TestTokens last(15, 1);
  const auto step = stream->Step(last.tokens(), last.query_tensor()).get();
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->durable_position, 16);
  EXPECT_EQ(session_->durable_position(), 16);
}

TEST_F(SessionCalls, AFailedPieceSaysHowFarTheCallCame) {
  CreateSession();
  const TestTokens data(0, 100'000);  // 28 bytes a token: 3 messages
  server_.FailNext({grpc::Status::OK, FakeError(grpc::StatusCode::INVALID_ARGUMENT,
                                                "FEATURE_OVERFLOW", "too large")});
  const auto appended = session_->Append(data.tokens());
  EXPECT_EQ(ErrorReasonOf(appended.status()), "FEATURE_OVERFLOW");
  EXPECT_EQ(appended.status().message(), "too large (" + std::to_string(session_->position()) +
                                             " of 100000 tokens of the call were acknowledged)");
  EXPECT_EQ(session_->position(), (1 << 20) / 28);
  EXPECT_EQ(server_.PositionOf(session_->id()), session_->position());
}

TEST_F(SessionCalls, AppendAtRepeatsACallOfAnotherProcess) {
  CreateSession();
  const TestTokens data(0, 100'000);
  ASSERT_TRUE(session_->Append(data.tokens()).ok());
  const auto other = client_->AttachSession(session_->id());
  ASSERT_TRUE(other.ok());
  const LayerTokens tokens = data.tokens();
  const std::int64_t begin = 0;
  const auto again = (*other)->AppendAt({&tokens, 1}, {&begin, 1});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->replayed_messages, again->messages);
  EXPECT_EQ((*other)->position(), 100'000);
  EXPECT_EQ(server_.PositionOf(session_->id()), 100'000);
  const std::int64_t gap = 200'000;
  EXPECT_EQ(ErrorReasonOf((*other)->AppendAt({&tokens, 1}, {&gap, 1}).status()), "WRONG_POSITION");
}

// The server remembers its last 128 messages; what lies further back would be WRONG_POSITION.
TEST_F(SessionCalls, AppendAtOfALongCallSendsOnlyWhatTheServerStillRemembers) {
  server_.limits.set_max_message_bytes(16 << 10);
  CreateSession();
  const TestTokens first(0, 90'000);
  ASSERT_TRUE(session_->Append(first.tokens()).ok());
  const std::int64_t messages = server_.seen().applied_messages;
  ASSERT_GT(messages, 140);
  const auto other = client_->AttachSession(session_->id());
  ASSERT_TRUE(other.ok());
  const TestTokens all(0, 100'000);
  const LayerTokens tokens = all.tokens();
  const std::int64_t begin = 0;
  const auto again = (*other)->AppendAt({&tokens, 1}, {&begin, 1});
  // The cut of the longer call falls elsewhere at its end only.
  EXPECT_EQ(ErrorReasonOf(again.status()), "REPLAY_MISMATCH");
  const LayerTokens same = first.tokens();
  const auto repeated = (*other)->AppendAt({&same, 1}, {&begin, 1});
  ASSERT_TRUE(repeated.ok()) << repeated.status();
  EXPECT_EQ(repeated->messages, messages);
  EXPECT_EQ(repeated->replayed_messages, messages);
  EXPECT_EQ(server_.PositionOf(session_->id()), 90'000);
  EXPECT_LT(server_.seen().replayed_messages, 100);
}

TEST_F(SessionCalls, LayersOfOneCallAdvanceTogether) {
  CreateSession(3);
  const TestTokens data(0, 60'000);
  const std::vector<LayerTokens> tokens = {data.tokens(2), TestTokens(0, 10).tokens(0)};
  const TestTokens few(0, 10);
  const std::vector<LayerTokens> both = {data.tokens(2), few.tokens(0)};
  const auto appended = session_->Append(both);
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_EQ(appended->positions, (std::vector<std::int64_t>{60'000, 10}));
  EXPECT_EQ(session_->position(0), 10);
  EXPECT_EQ(session_->position(1), 0);
  EXPECT_EQ(session_->position(2), 60'000);
  EXPECT_EQ(server_.PositionOf(session_->id(), 2), 60'000);
}

TEST_F(SessionCalls, ErrorsThatAreTheCallersSurface) {
  CreateSession();
  ASSERT_TRUE(session_->Append(TestTokens(0, 10).tokens()).ok());
  const auto other = client_->AttachSession(session_->id());
  ASSERT_TRUE((*other)->Append(TestTokens(10, 5).tokens()).ok());
  // The first handle does not know of the other's tokens; the server does.
  EXPECT_EQ(ErrorReasonOf(session_->Append(TestTokens(90, 3).tokens()).status()),
            "REPLAY_MISMATCH");
  ASSERT_TRUE((*other)->Append(TestTokens(15, 5).tokens()).ok());
  ASSERT_TRUE(session_->Refresh().ok());
  EXPECT_EQ(session_->position(), 20);

  server_.RaiseGenerations();
  EXPECT_EQ(ErrorReasonOf(session_->Append(TestTokens(20, 3).tokens()).status()),
            "STALE_GENERATION");
  EXPECT_EQ(session_->Refresh().status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(client_->DeleteSession(session_->id()).ok());
  EXPECT_EQ(ErrorReasonOf(session_->Attend(0, TestTokens(0, 1).query_tensor()).status()),
            "UNKNOWN");
}

TEST_F(SessionCalls, BadInputIsRefusedBeforeAnythingIsSent) {
  CreateSession();
  const std::int64_t calls = server_.seen().calls;
  const TestTokens data(0, 4);
  LayerTokens tokens = data.tokens(7);
  EXPECT_FALSE(session_->Append(tokens).ok());
  tokens = data.tokens(-1);
  EXPECT_FALSE(session_->Append(tokens).ok());
  tokens = data.tokens();
  tokens.mask = "\1";
  EXPECT_FALSE(session_->Append(tokens).ok());
  tokens = data.tokens();
  const TestTokens fewer(0, 3);
  tokens.values = F32(fewer.values, fewer.value_shape);
  EXPECT_FALSE(session_->Append(tokens).ok());
  EXPECT_FALSE(session_->Append(std::vector<LayerTokens>{data.tokens(), data.tokens()}).ok());
  EXPECT_FALSE(session_->Append(std::vector<LayerTokens>{}).ok());
  EXPECT_FALSE(session_->Attend(0, F32(data.values, data.value_shape)).ok());
  EXPECT_FALSE(session_->Attend(1, data.query_tensor()).ok());
  EXPECT_FALSE(session_->Step(data.tokens(), fewer.query_tensor()).ok());
  AttendOptions options;
  options.query_positions = {1};
  EXPECT_FALSE(session_->Attend(0, data.query_tensor(), options).ok());
  EXPECT_EQ(server_.seen().calls, calls);
}

TEST_F(SessionCalls, MasksTravelWithTheirTokens) {
  CreateSession();
  const TestTokens data(0, 60'000);
  LayerTokens tokens = data.tokens();
  tokens.mask = std::string(60'000, '\0');
  tokens.mask[59'999] = '\1';
  ASSERT_TRUE(session_->Append(tokens).ok());
  const std::vector<float> query(kKeyDim, 0.0F);
  const auto answer = session_->Attend(0, F32(query, {1, 1, kKeyDim}));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(*ToFloats(answer->answer.outputs()),
            std::vector<float>(data.values.end() - kValueDim, data.values.end()));
}

TEST_F(SessionCalls, ThreadsOfOneHandleTakeTurns) {
  CreateSession();
  const TestTokens data(0, 40'000);  // two messages: the other thread's must not come between
  std::vector<std::thread> threads;
  std::atomic<int> failures = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 3; ++round) {
        const auto appended = session_->Append(data.tokens());
        if (!appended.ok() || appended->positions[0] % 40'000 != 0) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(server_.PositionOf(session_->id()), 12 * 40'000);
}

TEST_F(SessionCalls, AWaitWasCutToTheTimeOfAnAttempt) {
  CreateSession();  // attempts of 20 seconds
  const TestTokens data(0, 1);
  ASSERT_TRUE(session_->Append(data.tokens()).ok());
  AttendOptions options;
  options.call.timeout = absl::Minutes(10);
  ASSERT_TRUE(session_->Attend(0, data.query_tensor(), options).ok());
  EXPECT_LE(server_.seen().time_left, std::chrono::seconds(21));
  options.wait = true;
  ASSERT_TRUE(session_->Attend(0, data.query_tensor(), options).ok());
  EXPECT_GT(server_.seen().time_left, std::chrono::minutes(9));
}

TEST_F(SessionCalls, ManyLayersMadeAMessageLargerThanTheServerAccepts) {
  constexpr int kLayers = 256;
  server_.limits.set_max_message_bytes(64 << 10);
  CreateSession(kLayers);
  const TestTokens data(0, 20);
  std::vector<LayerTokens> tokens;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) tokens.push_back(data.tokens(layer));
  const auto appended = session_->Append(tokens);
  ASSERT_TRUE(appended.ok()) << appended.status();
  EXPECT_GT(appended->messages, 1);
  EXPECT_LE(server_.seen().largest_request, 64 << 10);

  const auto stream = session_->OpenStream();
  ASSERT_TRUE(stream.ok());
  // 28 bytes a token: their tensors alone would fit eight times.
  const TestTokens eight(0, 8);
  const TestTokens four(0, 4);
  std::vector<LayerTokens> larger;
  std::vector<LayerTokens> fitting;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    larger.push_back(eight.tokens(layer));
    fitting.push_back(four.tokens(layer));
  }
  EXPECT_EQ(stream.value()->Append(larger, [](const auto&) {}).message(),
            "keys: 8 rows do not fit one message of the stream; send at most 4, or use the unary "
            "call");
  std::promise<absl::Status> sent;
  ASSERT_TRUE(stream.value()
                  ->Append(fitting, [&](const auto& result) { sent.set_value(result.status()); })
                  .ok());
  EXPECT_TRUE(sent.get_future().get().ok());
}

TEST_F(SessionCalls, StepAtRepeatsACallOfAnotherProcess) {
  CreateSession();
  ASSERT_TRUE(session_->Append(TestTokens(0, 5).tokens()).ok());
  const TestTokens data(5, 10);
  const auto once = session_->Step(data.tokens(), data.query_tensor());
  ASSERT_TRUE(once.ok());
  const auto other = client_->AttachSession(session_->id());
  ASSERT_TRUE(other.ok());
  const auto again = (*other)->StepAt(data.tokens(), 5, data.query_tensor());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->replayed_messages, 1);
  EXPECT_EQ(again->answer.SerializeAsString(), once->answer.SerializeAsString());
  EXPECT_EQ((*other)->position(), 15);
  EXPECT_EQ(server_.PositionOf(session_->id()), 15);
  EXPECT_EQ(ErrorReasonOf((*other)->StepAt(data.tokens(), 77, data.query_tensor()).status()),
            "WRONG_POSITION");
}

}  // namespace
}  // namespace attnd::client
