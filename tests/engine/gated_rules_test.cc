// What decays and delta rules promise, where they end, and which combinations are refused.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/gated_harness.h"

namespace attnd::engine::gated_test {
namespace {

using linear_test::NormalNumbers;
using testing::HasSubstr;
using Decay = UpdateRule::Decay;

// fla#77, PermuteFormer#2: exp(+ cumulative decay) overflows.
TEST(GatedRules, DecaysWhoseProductUnderflowsLeaveTheNewestTokens) {
  for (const char* name : {"mamba2", "gla", "rwkv6", "gated_delta"}) {
    SCOPED_TRACE(name);
    const Case c = CaseNamed(name);
    const auto engine = Make(c);
    Stream stream(c, 200, 31);
    for (float& log : stream.log_decays) log = -60.0F;
    const std::vector<float> queries = NormalNumbers(c.shape.query_row(), 32);
    for (const std::int64_t position : {2, 64, 65, 200}) {
      const Answers answers = Attend(*engine, *At(*engine, stream, position), queries.data(), 1);
      const oracle::Answers truth =
          Recur(stream.context(position), {queries.data(), {position}}, stream.recurrence());
      EXPECT_LE(oracle::RelativeError(answers.outputs, truth.outputs), 5e-6) << position;
    }
  }
}

TEST(GatedRules, TheLargestDecayForgetsEverything) {
  const Case c = CaseNamed("mamba2");
  const auto engine = Make(c);
  Stream stream(c, 130, 33);
  const std::int64_t heads = c.shape.kv_heads;
  std::fill_n(stream.log_decays.begin() + 129 * heads, heads, -kMaxLogDecay);
  const std::vector<float> queries = NormalNumbers(c.shape.query_row(), 34);
  Stream last(c, 1, 35);
  std::copy_n(stream.keys.begin() + 129 * c.shape.key_row(), c.shape.key_row(), last.keys.begin());
  std::copy_n(stream.values.begin() + 129 * c.shape.value_row(), c.shape.value_row(),
              last.values.begin());
  const Answers all = Attend(*engine, *At(*engine, stream, 130), queries.data(), 1);
  const Answers one = Attend(*engine, *At(*engine, last, 1), queries.data(), 1);
  EXPECT_EQ(all.outputs, one.outputs);
}

// A normaliser that does not decay with the numerator lets constant values fade.
TEST(GatedRules, NormalisedDecaysLeaveConstantValuesAsTheyAre) {
  for (const char* name : {"normalized_scalar", "normalized_vector"}) {
    const Case c = CaseNamed(name);
    const auto engine = Make(c);
    Stream stream(c, 300, 36);
    for (float& value : stream.values) value = 2.5F;
    const std::vector<float> queries = NormalNumbers(4 * c.shape.query_row(), 37);
    for (const float output :
         Attend(*engine, *At(*engine, stream, 300), queries.data(), 4).outputs) {
      EXPECT_NEAR(output, 2.5F, 1e-5F);
    }
  }
}

// One key written again and again: a sum would add the values up, a delta rule replaces them.
TEST(GatedRules, ADeltaRuleReplacesTheValueOfAKey) {
  Case c = CaseNamed("delta");
  c.shape.scale = 1.0F;
  const auto engine = Make(c);
  Stream stream(c, 150, 38);
  std::fill(stream.keys.begin(), stream.keys.end(), 0.0F);
  for (std::int64_t i = 0; i < 150 * c.shape.kv_heads; ++i) {
    stream.keys[Size(i * c.shape.key_dim + i / c.shape.kv_heads % 3)] = 1.0F;
  }
  std::fill(stream.rates.begin(), stream.rates.end(), 1.0F);
  std::vector<float> query(Size(c.shape.query_row()), 0.0F);
  for (std::int64_t h = 0; h < c.shape.query_heads; ++h) query[Size(h * c.shape.key_dim)] = 1.0F;
  const Answers answers = Attend(*engine, *At(*engine, stream, 150), query.data(), 1);
  // Token 147 is the last one with key 0.
  for (std::int64_t h = 0; h < c.shape.query_heads; ++h) {
    for (std::int64_t j = 0; j < c.shape.value_dim; ++j) {
      const std::int64_t head = h / c.shape.group_size();
      EXPECT_NEAR(answers.outputs[Size(h * c.shape.value_dim + j)],
                  stream.values[Size((147 * c.shape.kv_heads + head) * c.shape.value_dim + j)],
                  1e-5F);
    }
  }
}

// Keys far longer than a delta rule bears: S grows until tokens are refused; what was accepted
// still answers.
TEST(GatedRules, ADeltaRuleThatDivergesIsRefusedAndPoisonsNothing) {
  const Case c = CaseNamed("delta");
  const auto engine = Make(c);
  Stream stream(c, 64 * 40, 39);
  for (float& key : stream.keys) key *= 30.0F;
  auto state = EmptyLayer(*engine);
  Scratch scratch;
  absl::Status status;
  while (status.ok() && state->position() < stream.tokens) {
    LayerDraft draft(*engine, state);
    status = draft.Append(stream.batch(), state->position(), 1, nullptr, scratch);
    status.Update(draft.CheckTail(scratch));
    if (status.ok()) state = draft.Finish();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  EXPECT_GT(state->position(), 5);
  const std::vector<float> queries = NormalNumbers(c.shape.query_row(), 40, 1e-3F);
  const Answers answers = Attend(*engine, *state, queries.data(), 1);
  for (const float output : answers.outputs) EXPECT_TRUE(std::isfinite(output));
}

TEST(GatedRules, ATailThatCanBeCheckedCanBeSealed) {
  for (const char* name : {"mamba2", "gla", "delta", "gated_delta"}) {
    const Case c = CaseNamed(name);
    const auto engine = Make(c);
    for (const float size : {1e37F, 1e38F, 3e38F}) {
      Stream stream(c, 129, 41);
      for (float& value : stream.values) value = size;
      Scratch scratch;
      // With a state and without one.
      for (const std::int64_t tokens : {64, 128}) {
        LayerDraft draft(*engine, EmptyLayer(*engine));
        if (!draft.Append(stream.batch(), 0, tokens, nullptr, scratch).ok()) continue;
        const bool checked = draft.CheckTail(scratch).ok();
        EXPECT_EQ(draft.Append(stream.batch(), tokens, 1, nullptr, scratch).ok(), checked)
            << name << " " << size << " " << tokens;
      }
    }
  }
}

// An update that is not a number was accepted, and its block could then never be sealed.
TEST(GatedRules, AnUpdateThatIsNotANumberIsRefusedBeforeItIsAcknowledged) {
  Case c = CaseNamed("delta");
  c.shape = {1, 1, 1, 1, 1.0F};
  const auto engine = Make(c);
  Stream stream(c, 65, 45);
  std::fill(stream.rates.begin(), stream.rates.end(), 1.0F);
  stream.keys[0] = stream.keys[1] = 1e20F;
  stream.values[0] = 0.0F;
  stream.values[1] = 1.0F;
  for (std::int64_t token = 2; token < 65; ++token) stream.Mask(token);
  auto state = EmptyLayer(*engine);
  Scratch scratch;
  absl::Status status;
  while (status.ok() && state->position() < stream.tokens) {
    LayerDraft draft(*engine, state);
    status = draft.Append(stream.batch(), state->position(), 1, nullptr, scratch);
    status.Update(draft.CheckTail(scratch));
    if (status.ok()) state = draft.Finish();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_LT(state->position(), 2);
  // What was accepted takes 64 more tokens, which are masked.
  LayerDraft draft(*engine, state);
  Stream masked(c, 65, 46);
  for (std::int64_t token = 0; token < 65; ++token) masked.Mask(token);
  EXPECT_TRUE(draft.Append(masked.batch(), 0, 65, nullptr, scratch).ok());
}

// Sums without a denominator have no Z that could overflow.
TEST(GatedRules, ADeltaRuleHasNoKeySumsToOverflow) {
  Case c = CaseNamed("delta");
  c.shape = {1, 1, 1, 1, 1.0F};
  const auto engine = Make(c);
  Stream stream(c, 66, 47);
  std::fill(stream.keys.begin(), stream.keys.end(), 1e19F);
  std::fill(stream.values.begin(), stream.values.end(), 1.0F);
  std::fill(stream.rates.begin(), stream.rates.end(), 1e-38F);
  stream.keys[65] = 0.0F;
  const float query = 1e19F;
  const Answers answers = Attend(*engine, *At(*engine, stream, 66), &query, 1);
  const oracle::Answers truth = Recur(stream.context(66), {&query, {66}}, stream.recurrence());
  EXPECT_EQ(answers.flags[0], 0);
  EXPECT_NEAR(answers.outputs[0], truth.outputs[0], 1e-5);
}

TEST(GatedRules, GatesOutOfRangeAreRefusedByName) {
  struct Bad {
    const char* rule;
    std::vector<float> Stream::*gates;
    float value;
    const char* name;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Bad& bad :
       {Bad{"mamba2", &Stream::log_decays, 0.001F, "log_decays"},
        Bad{"mamba2", &Stream::log_decays, nan, "log_decays"},
        Bad{"gla", &Stream::log_decays, -2e4F, "log_decays"},
        Bad{"delta", &Stream::rates, 2.01F, "rates"}, Bad{"delta", &Stream::rates, -0.1F, "rates"},
        Bad{"gated_delta", &Stream::rates, nan, "rates"}}) {
    const Case c = CaseNamed(bad.rule);
    const auto engine = Make(c);
    Stream stream(c, 70, 42);
    (stream.*bad.gates)[(stream.*bad.gates).size() - 1] = bad.value;
    Scratch scratch;
    LayerDraft draft(*engine, EmptyLayer(*engine));
    const absl::Status status = draft.Append(stream.batch(), 0, 70, nullptr, scratch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.name));
    EXPECT_THAT(std::string(status.message()), HasSubstr("token 69"));
  }
}

TEST(GatedRules, CombinationsThatDoNotFitAreRefusedByName) {
  struct Bad {
    const char* rule;
    std::function<void(LinearConfig&)> change;
    const char* name;
  };
  for (const Bad& bad : std::vector<Bad>{
           {"retnet", [](LinearConfig& c) { c.update.log_decays.pop_back(); },
            "log_decays holds 2"},
           {"retnet", [](LinearConfig& c) { c.update.log_decays[1] = 0.1F; },
            "log_decays holds 0.1"},
           {"mamba2", [](LinearConfig& c) { c.update.log_decays = {-1.0F}; }, "log_decays holds 1"},
           {"delta", [](LinearConfig& c) { c.normalized = true; }, "normalization"},
           {"delta", [](LinearConfig& c) { c.update.decay = Decay::kPerFeature; }, "delta"},
           {"delta", [](LinearConfig& c) { c.update.read_first = true; }, "delta"},
           {"rwkv6", [](LinearConfig& c) { c.update.bonus.pop_back(); }, "bonus holds 31"},
           {"rwkv6", [](LinearConfig& c) { c.update.bonus[3] = NAN; }, "bonus holds nan"},
           {"gla", [](LinearConfig& c) { c.update.bonus.assign(48, 1.0F); }, "bonus"},
           {"gla", [](LinearConfig& c) { c.feature_map.name = "favor_positive"; }, "powers of two"},
           {"gla", [](LinearConfig& c) { c.normalized = true; }, "normalization"}}) {
    Case c = CaseNamed(bad.rule);
    bad.change(c.config);
    if (c.config.feature_map.name == "favor_positive") c.config.normalized = true;
    const auto engine = MakeEngine({c.shape, c.config});
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument) << bad.name;
    EXPECT_THAT(std::string(engine.status().message()), HasSubstr(bad.name));
  }
}

TEST(GatedRules, AWindowIsRefused) {
  for (const Case& c : AllCases()) {
    EngineConfig config = {c.shape, c.config};
    config.window_tokens = 128;
    const auto engine = MakeEngine(config);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument) << c.name;
    EXPECT_THAT(std::string(engine.status().message()), HasSubstr("window_tokens is 128"));
  }
}

TEST(GatedRules, NothingOfThisFamilyMerges) {
  for (const Case& c : AllCases()) {
    EXPECT_FALSE(Make(c)->mergeable()) << c.name;
    EXPECT_EQ(Make(c)->has_denominators(), !c.config.update.delta) << c.name;
  }
}

// 60,000 tokens with decays near 1: what is summed stays close to what f64 sums.
TEST(GatedRules, LongMemoriesDoNotDrift) {
  Case c = CaseNamed("mamba2");
  c.shape = {1, 1, 8, 8, 1.0F};
  const auto engine = Make(c);
  Stream stream(c, 60'000, 43);
  for (float& log : stream.log_decays) log *= 1e-3F;
  const std::vector<float> queries = NormalNumbers(c.shape.query_row(), 44);
  const Answers answers = Attend(*engine, *At(*engine, stream, 60'000), queries.data(), 1);
  const oracle::Answers truth =
      Recur(stream.context(60'000), {queries.data(), {60'000}}, stream.recurrence());
  EXPECT_LE(oracle::RelativeError(answers.outputs, truth.outputs), 2e-6);
}

}  // namespace
}  // namespace attnd::engine::gated_test
