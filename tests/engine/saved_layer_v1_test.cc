// Layers that were saved in version 1, kept in tests/data/saved_v1: they load for ever. Answers may
// differ in their last bits, which depend on the instruction set.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine_config.h"
#include "engine/layer_loader.h"
#include "engine/layer_stream.h"
#include "engine/saved_layer.h"
#include "engine/scratch.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"

namespace attnd::engine {
namespace {

constexpr LayerShape kShape = {1, 2, 4, 3, 0.5F};
constexpr std::int64_t kTokens = 200;
constexpr std::int64_t kQueries = 2;

// Halves, quarters and so on up to 1.5, the same wherever they are computed.
std::vector<float> Numbers(std::int64_t count, std::int64_t step) {
  std::vector<float> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    numbers.push_back(static_cast<float>((i * step) % 97 - 48) / 32.0F);
  }
  return numbers;
}

struct SavedV1 {
  std::string name;
  EngineConfig config;
};
void PrintTo(const SavedV1& saved, std::ostream* os) { *os << saved.name; }

LinearConfig Linear(const std::string& map) {
  LinearConfig config;
  config.feature_map.name = map;
  return config;
}

std::vector<SavedV1> AllSaved() {
  LinearConfig gated = Linear("identity");
  gated.normalized = false;
  gated.update.decay = UpdateRule::Decay::kPerToken;
  return {{"exact", {kShape, ExactConfig{}, 0}},
          {"exact_window", {kShape, ExactConfig{.storage = DataType::kBf16}, 100}},
          {"kde_index", {kShape, KdeConfig{.mode = KdeConfig::Mode::kIndex}, 0}},
          {"linear", {kShape, Linear("elu_plus_one"), 0}},
          {"linear_window", {kShape, Linear("elu_plus_one"), 192}},
          {"efficient", {kShape, Linear("efficient"), 0}},
          {"gated", {kShape, gated, 0}}};
}

std::string FileOf(const std::string& name, const char* part) {
  const std::string path =
      std::string(ATTND_SOURCE_DIR) + "/tests/data/saved_v1/" + name + "." + part;
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> OutputsOf(const Engine& engine, const LayerState& state) {
  const std::vector<float> queries = Numbers(kQueries * kShape.query_row(), 29);
  std::vector<float> outputs(Size(kQueries * kShape.output_row()));
  std::array<std::uint8_t, 4> flags{};
  AnswerView view;
  view.outputs = outputs.data();
  view.flags = flags.data();
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine.NewPlan();
  plan->Reset(AttendGroup(state, queries.data(), kQueries), view);
  for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
    while (!plan->Run(chain, scratch)) {
    }
  }
  plan->Finish(scratch);
  return outputs;
}

// The layer that was saved, made of its tokens.
std::shared_ptr<const LayerState> MadeAnew(const Engine& engine) {
  const std::vector<float> keys = Numbers(kTokens * kShape.key_row(), 31);
  const std::vector<float> values = Numbers(kTokens * kShape.value_row(), 37);
  const std::vector<float> log_decays(kTokens, -0.125F);
  std::vector<std::uint8_t> mask(kTokens, 1);
  mask[3] = mask[100] = mask[199] = 0;
  const auto elements = [](const std::vector<float>& numbers) {
    return ConstElements{DataType::kF32, numbers.data(), std::ssize(numbers)};
  };
  const TokenBatch batch = {kTokens,     elements(keys),       elements(values),
                            mask.data(), elements(log_decays), {}};
  LayerDraft draft(engine, EmptyLayer(engine));
  Scratch scratch;
  EXPECT_TRUE(draft.Append(batch, 0, kTokens, nullptr, scratch).ok());
  return draft.Finish();
}

class SavedLayerV1 : public testing::TestWithParam<SavedV1> {
 protected:
  std::unique_ptr<const Engine> engine_ = MakeEngine(GetParam().config).value();
};

TEST_P(SavedLayerV1, LoadsAndAnswersAsWhenItWasSaved) {
  absl::StatusOr<LayerLoader> loader = LayerLoader::Make(*engine_, FileOf(GetParam().name, "root"));
  ASSERT_TRUE(loader.ok()) << loader.status();
  Scratch scratch;
  if (engine_->keeps_rows()) {
    const absl::Status added = loader->AddSegment(FileOf(GetParam().name, "segment"), scratch);
    ASSERT_TRUE(added.ok()) << added;
  }
  const auto state = loader->Finish(scratch);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ((*state)->position(), kTokens);
  const std::vector<float> outputs = OutputsOf(*engine_, **state);
  const std::string bytes = FileOf(GetParam().name, "outputs");
  ASSERT_EQ(bytes.size(), outputs.size() * sizeof(float));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    float stored = 0;
    bytes.copy(reinterpret_cast<char*>(&stored), sizeof stored, i * sizeof stored);
    EXPECT_NEAR(outputs[i], stored, 1e-6F * std::max(1.0F, std::abs(stored))) << i;
  }
}

// Rows are the same on every machine; sums may not be.
TEST_P(SavedLayerV1, OfRowsIsWrittenAsItWas) {
  const std::shared_ptr<const LayerState> state = MadeAnew(*engine_);
  const std::string root = SaveRoot(*engine_, *state).value();
  const std::string stored = FileOf(GetParam().name, "root");
  ASSERT_EQ(root.size(), stored.size());
  if (!engine_->keeps_rows()) return;
  EXPECT_TRUE(root == stored);
  const std::int64_t first = engine_->FirstKeptBlock(*state->sealed);
  EXPECT_TRUE(SaveSegment(*engine_, *state, first, 3 - first).value() ==
              FileOf(GetParam().name, "segment"));
}

INSTANTIATE_TEST_SUITE_P(Kinds, SavedLayerV1, testing::ValuesIn(AllSaved()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace attnd::engine
