// Layers over any engine: states depend on the tokens alone, drafts leave nothing behind, published
// states never change.
#include "engine/layer_stream.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_config.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr LayerShape kShape = {
    .kv_heads = 2, .query_heads = 4, .key_dim = 12, .value_dim = 7, .scale = 0.5F};
constexpr std::int64_t kTokens = 700;

LinearConfig Linear(const std::string& map) {
  LinearConfig config;
  config.feature_map.name = map;
  config.normalized = map != "identity";
  return config;
}

struct Case {
  const char* name;
  EngineConfig config;
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

class LayerStream : public ::testing::TestWithParam<Case> {
 protected:
  LayerStream() {
    for (std::size_t i = 3; i < kTokens; i += 13) mask_[i] = 0;
  }

  using State = std::shared_ptr<const LayerState>;

  TokenBatch Batch() const {
    return {kTokens,
            {DataType::kF32, keys_.data(), kTokens * kShape.key_row()},
            {DataType::kF32, values_.data(), kTokens * kShape.value_row()},
            mask_.data()};
  }
  // Tokens [position, position + count), in pieces of at most `piece`.
  State Appended(const State& base, std::int64_t count, std::int64_t piece,
                 TokenDigester* digester = nullptr) {
    LayerDraft draft(*engine_, base);
    for (std::int64_t done = 0; done < count; done += piece) {
      const absl::Status status = draft.Append(Batch(), base->position() + done,
                                               std::min(piece, count - done), digester, scratch_);
      EXPECT_TRUE(status.ok()) << status;
    }
    EXPECT_TRUE(draft.CheckTail(scratch_).ok());
    return draft.Finish();
  }
  std::vector<float> Run(const QueryGroup& group) {
    std::vector<float> outputs(static_cast<std::size_t>(group.count * kShape.output_row()));
    AnswerView view;
    view.outputs = outputs.data();
    const auto plan = engine_->NewPlan();
    plan->Reset(group, view);
    for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
      while (!plan->Run(chain, scratch_)) {
      }
    }
    plan->Finish(scratch_);
    return outputs;
  }
  std::vector<float> Attend(const State& state, std::int64_t first, std::int64_t count) {
    return Run(AttendGroup(*state, queries_.data() + first * kShape.query_row(), count));
  }

  const std::unique_ptr<const Engine> engine_ = *MakeEngine(GetParam().config);
  const std::vector<float> keys_ = RandomValues(kTokens * kShape.key_row(), 1);
  const std::vector<float> values_ = RandomValues(kTokens * kShape.value_row(), 2);
  const std::vector<float> queries_ = RandomValues(kTokens * kShape.query_row(), 3);
  std::vector<std::uint8_t> mask_ = std::vector<std::uint8_t>(kTokens, 1);
  Scratch scratch_;
};

TEST_P(LayerStream, ABlockIsSealedWhenTheNextTokenComes) {
  State state = EmptyLayer(*engine_);
  EXPECT_EQ(state->position(), 0);
  for (const std::int64_t count : {1, 62, 1, 1, 63, 1, 128, 300}) {
    state = Appended(state, count, count);
    const std::int64_t position = state->position();
    EXPECT_EQ(state->sealed_tokens, (position - 1) / 64 * 64);
    EXPECT_EQ(state->tail_rows, position - state->sealed_tokens);
    EXPECT_GE(state->tail_rows, 1);
    EXPECT_LE(state->tail_rows, 64);
  }
}

TEST_P(LayerStream, BitsAndDigestsDoNotDependOnCutting) {
  std::map<std::int64_t, std::vector<float>> truth;
  std::optional<Digest> digest;
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto draw = [&random](std::int64_t low, std::int64_t high) {
      return std::uniform_int_distribution<std::int64_t>(low, high)(random);
    };
    State state = EmptyLayer(*engine_);
    TokenDigester digester;
    while (state->position() < kTokens) {
      const std::int64_t count = std::min(draw(1, seed < 4 ? 5 : 200), kTokens - state->position());
      state = Appended(state, count, draw(1, 150), &digester);
      // Compare where others have been, and leave something where they will come.
      std::vector<float>& known = truth[state->position()];
      const std::vector<float> answers = Attend(state, 0, 3);
      if (known.empty()) known = answers;
      EXPECT_TRUE(SameBits(known, answers)) << "position " << state->position();
    }
    if (!digest) digest = digester.Result();
    EXPECT_EQ(digester.Result(), *digest);
  }
}

TEST_P(LayerStream, StepsAnswerWithTheBitsOfAttends) {
  std::mt19937 random(5);
  for (int round = 0; round < 10; ++round) {
    State state = EmptyLayer(*engine_);
    const auto before = static_cast<std::int64_t>(random() % 200);
    if (before > 0) state = Appended(state, before, 1000);
    LayerDraft draft(*engine_, state);
    for (std::int64_t left = 150; left > 0;) {
      const std::int64_t first = draft.position();
      const auto now = std::min<std::int64_t>(
          {left, draft.open_rows(), static_cast<std::int64_t>(1 + random() % 64)});
      ASSERT_TRUE(draft.Append(Batch(), first, now, nullptr, scratch_).ok());
      const std::vector<float> rows =
          Run(StepGroup(draft.state(), queries_.data() + first * kShape.query_row(), now));
      for (std::int64_t i = 0; i < now; ++i) {
        const State at = Appended(EmptyLayer(*engine_), first + i + 1, 1000);
        const auto row = rows.begin() + i * kShape.output_row();
        EXPECT_TRUE(SameBits({row, row + kShape.output_row()}, Attend(at, first + i, 1)))
            << "position " << first + i + 1;
      }
      left -= now;
    }
  }
}

TEST_P(LayerStream, APublishedStateNeverChanges) {
  std::vector<std::pair<State, std::vector<float>>> published;
  State state = EmptyLayer(*engine_);
  while (state->position() < kTokens) {
    state = Appended(state, std::min<std::int64_t>(23, kTokens - state->position()), 10);
    published.emplace_back(state, Attend(state, 0, 5));
  }
  for (const auto& [at, answers] : published) {
    EXPECT_TRUE(SameBits(Attend(at, 0, 5), answers)) << "position " << at->position();
  }
}

TEST_P(LayerStream, ADraftThatIsDroppedLeavesNothing) {
  for (const std::int64_t position : {0, 1, 50, 63, 64, 65, 128, 200}) {
    State state = EmptyLayer(*engine_);
    if (position > 0) state = Appended(state, position, 1000);
    const std::vector<float> before = Attend(state, 0, 5);
    for (const std::int64_t dropped : {1, 20, 64, 65, 300}) {
      // Other tokens than those that come later.
      LayerDraft draft(*engine_, state);
      ASSERT_TRUE(draft.Append(Batch(), kTokens - dropped, dropped, nullptr, scratch_).ok());
    }
    EXPECT_TRUE(SameBits(Attend(state, 0, 5), before)) << "position " << position;
    const State later = Appended(state, 300, 77);
    const State plain = Appended(EmptyLayer(*engine_), position + 300, 1000);
    EXPECT_TRUE(SameBits(Attend(later, 0, 5), Attend(plain, 0, 5))) << "position " << position;
  }
}

TEST_P(LayerStream, ARefusedAppendLeavesNothing) {
  for (const std::int64_t position : {1, 50, 64, 130}) {
    const State state = Appended(EmptyLayer(*engine_), position, 1000);
    const std::vector<float> before = Attend(state, 0, 5);
    for (const std::int64_t bad : {0, 10, 63, 64, 100}) {
      std::vector<float> keys = keys_;
      keys[static_cast<std::size_t>((position + bad) * kShape.key_row())] =
          std::numeric_limits<float>::quiet_NaN();
      TokenBatch batch = Batch();
      batch.keys.data = keys.data();
      std::vector<std::uint8_t> mask(kTokens, 1);
      batch.mask = mask.data();
      LayerDraft draft(*engine_, state);
      EXPECT_EQ(draft.Append(batch, position, 150, nullptr, scratch_).code(),
                absl::StatusCode::kInvalidArgument);
    }
    EXPECT_TRUE(SameBits(Attend(state, 0, 5), before));
    EXPECT_TRUE(SameBits(Attend(Appended(state, 200, 64), 0, 5),
                         Attend(Appended(EmptyLayer(*engine_), position + 200, 1000), 0, 5)));
  }
}

TEST_P(LayerStream, BytesGrowWithTheTokensAndNotBeforeThem) {
  const State empty = EmptyLayer(*engine_);
  EXPECT_LE(empty->bytes(), engine_->fixed_bytes());
  const State full = Appended(empty, kTokens, 64);
  EXPECT_GE(full->bytes(), empty->bytes());
  EXPECT_LE(full->bytes(), engine_->fixed_bytes() + 2 * kTokens * engine_->bytes_per_token());
}

INSTANTIATE_TEST_SUITE_P(
    All, LayerStream,
    ::testing::Values(Case{"exact", {kShape, ExactConfig{}}},
                      Case{"exact_bf16", {kShape, ExactConfig{DataType::kBf16}}},
                      Case{"elu", {kShape, Linear("elu_plus_one")}},
                      Case{"relu", {kShape, Linear("relu")}},
                      Case{"squared_relu", {kShape, Linear("squared_relu")}},
                      Case{"identity", {kShape, Linear("identity")}},
                      Case{"exact_window", {kShape, ExactConfig{}, 100}},
                      Case{"elu_window", {kShape, Linear("elu_plus_one"), 320}},
                      Case{"favor_window", {kShape, Linear("favor_positive"), 192}}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace attnd::engine
