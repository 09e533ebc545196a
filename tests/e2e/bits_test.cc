// Promise 1 over the wire: an answer's bits depend on the tokens, not on how they came or who asked
// beside.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {
namespace {

struct Case {
  const char* name;
  v1::LayerGroup group;
  Shape shape;
  float key_factor = 1.0F;
};

std::vector<Case> Cases() {
  const Shape narrow = {.kv_heads = 1, .query_heads = 1, .key_dim = 16, .value_dim = 16};
  const Shape grouped = {.kv_heads = 2, .query_heads = 6, .key_dim = 24, .value_dim = 10};
  std::vector<Case> cases = {
      {"exact", ExactGroup(narrow), narrow},
      {"exact_grouped", ExactGroup(grouped), grouped},
      {"exact_bf16", ExactGroup(grouped, v1::BF16), grouped},
      {"elu", LinearGroup(narrow), narrow},
      {"elu_grouped", LinearGroup(grouped), grouped},
      {"relu", LinearGroup(grouped, v1::RELU), grouped},
      {"squared_relu", LinearGroup(grouped, v1::SQUARED_RELU), grouped},
      {"identity", LinearGroup(grouped, v1::IDENTITY), grouped},
      {"favor", LinearGroup(grouped, v1::FAVOR_POSITIVE), grouped},
      {"fourier", LinearGroup(narrow, v1::RANDOM_FOURIER), narrow},
      {"dpfp", LinearGroup(narrow, v1::DPFP), narrow},
      {"taylor", LinearGroup(narrow, v1::TAYLOR), narrow},
      {"mamba2", GatedGroup(grouped, v1::UpdateRule::PER_TOKEN), grouped},
      {"gla", GatedGroup(grouped, v1::UpdateRule::PER_FEATURE), grouped},
      {"gated_delta", GatedGroup(grouped, v1::UpdateRule::PER_TOKEN, true), grouped},
      {"delta", GatedGroup(narrow, v1::UpdateRule::NONE, true), narrow},
      {"rwkv6", GatedGroup(narrow, v1::UpdateRule::PER_FEATURE), narrow},
      {"retnet", GatedGroup(narrow, v1::UpdateRule::CONSTANT), narrow},
      {"efficient", LinearGroup(grouped, v1::EFFICIENT), grouped},
      // Keys whose exponentials differ by far more than f32 holds.
      {"efficient_far", LinearGroup(grouped, v1::EFFICIENT), grouped, 40.0F},
      {"kde", KdeGroup(narrow), narrow},
      {"kde_grouped", KdeGroup(grouped), grouped},
      {"kde_index", KdeGroup(grouped, v1::KdeConfig::INDEX), grouped},
      {"kde_certified", KdeGroup(grouped, v1::KdeConfig::CERTIFIED), grouped},
      {"exact_window", ExactGroup(grouped), grouped},
      {"elu_window", LinearGroup(grouped), grouped},
      {"favor_window", LinearGroup(narrow, v1::FAVOR_POSITIVE), narrow},
  };
  const auto named = [&](const std::string& name) -> v1::LayerGroup& {
    return std::ranges::find(cases, name, &Case::name)->group;
  };
  named("relu").mutable_linear()->mutable_feature_map()->set_epsilon(0.01F);
  named("dpfp").mutable_linear()->mutable_feature_map()->set_nu(2);
  v1::UpdateRule& rwkv6 = *named("rwkv6").mutable_linear()->mutable_update();
  rwkv6.set_read_first(true);
  for (int i = 0; i < 16; ++i) rwkv6.add_bonus(0.1F * static_cast<float>(i) - 0.5F);
  named("retnet").mutable_linear()->mutable_update()->add_log_decays(-0.03125F);
  // A budget below the tokens, so that some are sampled.
  named("kde_certified").mutable_kde()->mutable_accuracy()->set_max_keys(100);
  named("exact_window").set_window_tokens(70);
  named("elu_window").set_window_tokens(192);
  named("favor_window").set_window_tokens(128);
  return cases;
}

// The answers at every position that any run looked at.
class Truth {
 public:
  // The first answer of a query at a position is what all others must equal.
  void Check(std::int64_t position, std::int64_t query, const std::string& row,
             const std::string& how) {
    std::string& known = rows_[{position, query}];
    if (known.empty()) known = row;
    EXPECT_EQ(known == row, true) << "query " << query << " at position " << position << " by "
                                  << how;
  }

 private:
  std::map<std::pair<std::int64_t, std::int64_t>, std::string> rows_;
};

class Bits : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t kTokens = 330;

  // Streams all tokens in random pieces by unary calls or a stream, and asks in between.
  void Run(TestServer& server, const std::string& id, std::uint32_t seed, bool stream);

  const Shape shape_ = GetParam().shape;
  Tokens tokens_ = [this] {
    Tokens tokens = RandomTokens(shape_, kTokens, 5);
    for (float& number : tokens.keys) number *= GetParam().key_factor;
    tokens.mask.assign(kTokens, 1);
    for (std::size_t i = 4; i < kTokens; i += 9) tokens.mask[i] = 0;
    if (GetParam().group.linear().has_update()) AddGates(GetParam().group, 6, tokens);
    return tokens;
  }();
  const std::vector<float> queries_ = RandomQueries(shape_, kTokens, 5);
  Truth truth_;
};

std::string Row(const v1::Answer& answer, std::int64_t row, std::int64_t rows) {
  const std::string& outputs = answer.outputs().data();
  const std::size_t bytes = outputs.size() / static_cast<std::size_t>(rows);
  const std::size_t heads = answer.flags().size() / static_cast<std::size_t>(rows);
  return outputs.substr(static_cast<std::size_t>(row) * bytes, bytes) +
         answer.flags().substr(static_cast<std::size_t>(row) * heads, heads);
}

void Bits::Run(TestServer& server, const std::string& id, std::uint32_t seed, bool stream) {
  SCOPED_TRACE("seed " + std::to_string(seed) + (stream ? ", stream" : ", unary"));
  std::mt19937 random(seed);
  const auto draw = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const TestSession session(server.stub(), id, ConfigOf({GetParam().group}));
  v1::AnswerOptions options;
  options.set_flags(true);

  const auto context = Context();
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamRequest, v1::StreamResponse>> exchange;
  if (stream) exchange = server.stub().Stream(context.get());
  const auto answer_of = [&](const v1::StreamRequest& request) {
    v1::StreamResponse response;
    EXPECT_TRUE(exchange->Write(request));
    EXPECT_TRUE(exchange->Read(&response));
    EXPECT_EQ(response.status().code(), 0) << response.status().message();
    return response;
  };

  std::int64_t position = 0;
  while (position < kTokens) {
    const std::int64_t left = kTokens - position;
    // Now and then one token, now and then a whole lot.
    const std::int64_t most = draw(0, 3) == 0 ? left : draw(0, 1) == 0 ? 3 : 70;
    const std::int64_t count = draw(1, std::min(most, left));
    if (draw(0, 1) == 0) {
      const v1::AppendRequest append = session.AppendOf(tokens_, position, count);
      v1::StreamRequest request;
      *request.mutable_append() = append;
      if (stream) {
        answer_of(request);
      } else {
        EXPECT_TRUE(Succeeded(session.Append(append).status));
      }
    } else {
      const v1::StepRequest step = session.StepOf(tokens_, queries_, position, count, options);
      v1::StreamRequest request;
      *request.mutable_step() = step;
      const v1::Answer answer =
          stream ? answer_of(request).step().answer() : session.Step(step)->answer();
      for (std::int64_t i = 0; i < count; ++i) {
        truth_.Check(position + i + 1, position + i, Row(answer, i, count), "Step");
      }
    }
    position += count;
    for (std::int64_t asks = draw(0, 2); asks > 0; --asks) {
      // Queries around the position, so that Steps and other runs asked the same ones.
      const std::int64_t first = std::max<std::int64_t>(position - draw(1, 40), 0);
      const std::int64_t queries = draw(1, std::min<std::int64_t>(kTokens - first, 60));
      const v1::AttendRequest attend = session.AttendOf(shape_, queries_, first, queries, options);
      v1::StreamRequest request;
      *request.mutable_attend() = attend;
      const v1::AttendResponse response =
          stream ? answer_of(request).attend() : session.Attend(attend).value;
      EXPECT_EQ(response.position(), position);
      for (std::int64_t i = 0; i < queries; ++i) {
        truth_.Check(position, first + i, Row(response.answer(), i, queries), "Attend");
      }
    }
  }
  // At the end all runs ask all queries.
  const v1::Answer answer =
      session.Attend(session.AttendOf(shape_, queries_, 0, kTokens, options))->answer();
  for (std::int64_t i = 0; i < kTokens; ++i) {
    truth_.Check(kTokens, i, Row(answer, i, kTokens), "the last Attend");
  }
  if (stream) {
    exchange->WritesDone();
    EXPECT_TRUE(Succeeded(exchange->Finish()));
  }
}

TEST_P(Bits, DoNotDependOnCuttingCallsWorkersOrBatches) {
  std::uint32_t seed = 1;
  for (const int workers : {1, 4}) {
    server::Options options = TestOptions();
    options.workers = workers;
    TestServer server(options);
    // One run that looks at every position by Steps of one block, then random ones.
    const TestSession steps(server.stub(), "steps", ConfigOf({GetParam().group}));
    v1::AnswerOptions asked;
    asked.set_flags(true);
    for (std::int64_t first = 0; first < kTokens; first += 33) {
      const v1::Answer answer =
          steps.Step(steps.StepOf(tokens_, queries_, first, 33, asked))->answer();
      for (std::int64_t i = 0; i < 33; ++i) {
        truth_.Check(first + i + 1, first + i, Row(answer, i, 33), "Step of 33");
      }
    }
    for (int round = 0; round < Rounds(10); ++round, ++seed) {
      Run(server, "run" + std::to_string(round), seed, round % 2 == 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Bits, ::testing::ValuesIn(Cases()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace attnd::e2e
