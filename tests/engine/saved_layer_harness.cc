#include "tests/engine/saved_layer_harness.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/layer_loader.h"
#include "engine/saved_layer.h"
#include "engine/scratch.h"
#include "gtest/gtest.h"
#include "tests/engine/gated_harness.h"
#include "tests/engine/linear_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::saved_test {
namespace {

// Neither dimension is a multiple of what they are padded to.
constexpr LayerShape kShape = {2, 4, 12, 10, 0.3F};

ConstElements Elements(const std::vector<float>& numbers) {
  return {DataType::kF32, numbers.data(), std::ssize(numbers)};
}

LinearConfig Mapped(const std::string& name) {
  LinearConfig config;
  config.feature_map.name = name;
  if (name == "relu") config.feature_map.epsilon = 1e-3F;
  if (name == "dpfp") config.feature_map.nu = 2;
  if (name == "cosformer") config.feature_map.horizon = 4096;
  if (name == "favor_sharp") config.feature_map.sharpness = 0.05F;
  if (name == "random_fourier" || name == "identity") config.normalized = false;
  return config;
}

}  // namespace

void PrintTo(const Kind& kind, std::ostream* os) { *os << kind.name; }

std::vector<Kind> AllKinds() {
  std::vector<Kind> kinds;
  const auto add = [&](const std::string& name, const auto& kind, std::int64_t window = 0,
                       float key_scale = 1.0F) {
    kinds.push_back({name, {kShape, kind, window}, key_scale});
  };
  for (const std::int64_t window : {0, 1, 100, 256}) {
    const std::string suffix = window == 0 ? "" : "_window_" + std::to_string(window);
    add("exact" + suffix, ExactConfig{}, window);
    add("exact_bf16" + suffix, ExactConfig{.storage = DataType::kBf16}, window);
  }
  add("kde_auto", KdeConfig{.mode = KdeConfig::Mode::kAuto});
  add("kde_index", KdeConfig{.mode = KdeConfig::Mode::kIndex});
  add("kde_certified", KdeConfig{.mode = KdeConfig::Mode::kCertified});
  add("kde_paper", KdeConfig{.mode = KdeConfig::Mode::kPaper});
  for (const char* map :
       {"elu_plus_one", "relu", "squared_relu", "identity", "favor_positive", "favor_hyperbolic",
        "favor_sharp", "random_fourier", "cosformer", "dpfp", "taylor"}) {
    add(map, Mapped(map), 0, 0.5F);
  }
  add("favor_far", Mapped("favor_positive"), 0, 8.0F);
  add("efficient", Mapped("efficient"));
  add("efficient_spread", Mapped("efficient"), 0, 60.0F);
  for (const std::int64_t blocks : {1, 2, 3, 6, 9, 17}) {
    add("window_" + std::to_string(blocks), Mapped("elu_plus_one"), blocks * kBlockTokens);
  }
  add("favor_window", Mapped("favor_positive"), 7 * kBlockTokens, 8.0F);
  for (const gated_test::Case& c : gated_test::AllCases()) {
    kinds.push_back({"gated_" + c.name,
                     {c.shape, c.config, 0},
                     1.0F / std::sqrt(static_cast<float>(c.shape.key_dim))});
  }
  return kinds;
}

Kind KindNamed(const std::string& name) {
  for (const Kind& kind : AllKinds()) {
    if (kind.name == name) return kind;
  }
  ADD_FAILURE() << name;
  return {};
}

std::unique_ptr<const Engine> Make(const Kind& kind) {
  absl::StatusOr<std::unique_ptr<const Engine>> engine = MakeEngine(kind.config);
  EXPECT_TRUE(engine.ok()) << kind.name << ": " << engine.status();
  return *std::move(engine);
}

TokenStream::TokenStream(const Kind& kind, const Engine& engine, std::int64_t count)
    : tokens(count),
      keys(RandomValues(count * engine.shape().key_row(), 5, kind.key_scale)),
      values(RandomValues(count * engine.shape().value_row(), 6)),
      log_decays(RandomValues(count * engine.tail_layout().log_decays, 7)),
      rates(RandomValues(count * engine.tail_layout().rates, 8)),
      mask(Size(count), 1) {
  for (float& x : log_decays) x = -0.3F / (1 + std::exp(-x));
  for (float& x : rates) x = 1 / (1 + std::exp(-x));
  for (std::int64_t t = 3; t < count; t += 11) mask[Size(t)] = 0;
  for (std::int64_t t = 128; t < std::min<std::int64_t>(count, 192); ++t) mask[Size(t)] = 0;
}

TokenBatch TokenStream::batch() const {
  return {tokens,      Elements(keys),       Elements(values),
          mask.data(), Elements(log_decays), Elements(rates)};
}

std::shared_ptr<const LayerState> Extend(const Engine& engine, const TokenStream& stream,
                                         const std::shared_ptr<const LayerState>& base,
                                         std::int64_t position) {
  LayerDraft draft(engine, base);
  Scratch scratch;
  const absl::Status appended =
      draft.Append(stream.batch(), base->position(), position - base->position(), nullptr, scratch);
  EXPECT_TRUE(appended.ok()) << appended;
  return draft.Finish();
}

bool Answered::operator==(const Answered& other) const {
  return SameBits(outputs, other.outputs) && SameBits(flags, other.flags);
}

Answered Ask(const Engine& engine, const LayerState& state) {
  constexpr std::int64_t kQueries = 5;
  const LayerShape& shape = engine.shape();
  const std::vector<float> queries = RandomValues(kQueries * shape.query_row(), 9);
  const std::vector<std::int64_t> positions(kQueries, state.position());
  Answered answered = {
      std::vector<float>(Size(kQueries * shape.output_row()), -7.0F),
      std::vector<std::uint8_t>(Size(kQueries * shape.query_heads), std::uint8_t{77})};
  AnswerView view;
  view.outputs = answered.outputs.data();
  view.flags = answered.flags.data();
  const QueryGroup group =
      AttendGroup(state, queries.data(), kQueries,
                  engine.position_use() == PositionUse::kNone ? nullptr : positions.data());
  Scratch scratch;
  const std::unique_ptr<AttendPlan> plan = engine.NewPlan();
  plan->Reset(group, view);
  for (std::int64_t chain = 0; chain < plan->chains(); ++chain) {
    while (!plan->Run(chain, scratch)) {
    }
  }
  plan->Finish(scratch);
  return answered;
}

Stored Save(const Engine& engine, const LayerState& state, std::int64_t segment) {
  Stored stored;
  const absl::StatusOr<std::string> root = SaveRoot(engine, state);
  EXPECT_TRUE(root.ok()) << root.status();
  stored.root = *root;
  const std::int64_t blocks = engine.keeps_rows() ? state.sealed_tokens / kBlockTokens : 0;
  for (std::int64_t first = engine.FirstKeptBlock(*state.sealed); first < blocks;
       first += segment) {
    const absl::StatusOr<std::string> bytes =
        SaveSegment(engine, state, first, std::min(segment, blocks - first));
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    stored.segments.push_back(*bytes);
  }
  return stored;
}

absl::StatusOr<std::shared_ptr<const LayerState>> Load(const Engine& engine, const Stored& stored) {
  absl::StatusOr<LayerLoader> loader = LayerLoader::Make(engine, stored.root);
  if (!loader.ok()) return loader.status();
  Scratch scratch;
  for (const std::string& segment : stored.segments) {
    const absl::Status added = loader->AddSegment(segment, scratch);
    if (!added.ok()) return added;
  }
  return loader->Finish(scratch);
}

}  // namespace attnd::engine::saved_test
