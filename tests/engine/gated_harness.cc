#include "tests/engine/gated_harness.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "gtest/gtest.h"

namespace attnd::engine::gated_test {
namespace {

using Decay = UpdateRule::Decay;
using linear_test::NormalNumbers;

LinearConfig Unnormalized(const std::string& map = "identity") {
  LinearConfig config;
  config.feature_map.name = map;
  config.normalized = false;
  return config;
}

// Log-decays between `least` and 0, as sigmoids give them.
std::vector<float> LogDecays(std::int64_t count, std::uint32_t seed, float least) {
  std::vector<float> numbers = NormalNumbers(count, seed);
  for (float& x : numbers) x = least / (1 + std::exp(-x));
  return numbers;
}

}  // namespace

void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, const LayerShape& shape,
                       const LinearConfig& config) -> UpdateRule& {
    cases.push_back({name, shape, config});
    return cases.back().config.update;
  };
  {
    UpdateRule& rule = add("retnet", {3, 3, 24, 20, 0.3F}, Unnormalized());
    rule.decay = Decay::kConstant;
    for (int h = 0; h < 3; ++h) {
      rule.log_decays.push_back(std::log1p(-std::pow(2.0F, -5.0F - static_cast<float>(h))));
    }
  }
  {
    UpdateRule& rule = add("rwkv5", {2, 2, 8, 8, 1.0F}, Unnormalized());
    rule.decay = Decay::kConstant;
    rule.log_decays = LogDecays(16, 5, -2.0F);
    rule.read_first = true;
    rule.bonus = NormalNumbers(16, 6);
  }
  add("mamba2", {2, 4, 24, 20, 0.3F}, Unnormalized()).decay = Decay::kPerToken;
  {
    LinearConfig config = Unnormalized("elu_plus_one");
    config.normalized = true;
    add("normalized_scalar", {2, 4, 24, 20, 0.3F}, config).decay = Decay::kPerToken;
    add("normalized_vector", {1, 3, 33, 17, 1.0F}, config).decay = Decay::kPerFeature;
  }
  add("gla", {2, 6, 24, 20, 0.3F}, Unnormalized()).decay = Decay::kPerFeature;
  add("delta", {2, 4, 24, 20, 0.3F}, Unnormalized()).delta = true;
  {
    UpdateRule& rule = add("gated_delta", {2, 4, 16, 33, 1.0F}, Unnormalized());
    rule.decay = Decay::kPerToken;
    rule.delta = true;
  }
  {
    UpdateRule& rule = add("rwkv6", {2, 2, 16, 16, 1.0F}, Unnormalized());
    rule.decay = Decay::kPerFeature;
    rule.read_first = true;
    rule.bonus = NormalNumbers(32, 7);
  }
  {
    UpdateRule& rule = add("strictly_before", {1, 2, 20, 5, 0.5F}, Unnormalized());
    rule.decay = Decay::kPerToken;
    rule.read_first = true;
  }
  {
    UpdateRule& rule = add("scalar_with_bonus", {2, 2, 20, 5, 0.5F}, Unnormalized());
    rule.decay = Decay::kPerToken;
    rule.read_first = true;
    rule.bonus = NormalNumbers(40, 8);
  }
  add("many_features", {1, 1, 300, 7, 0.5F}, Unnormalized()).decay = Decay::kPerFeature;
  add("mapped", {1, 2, 6, 9, 1.0F}, Unnormalized("taylor")).decay = Decay::kPerFeature;
  return cases;
}

Case CaseNamed(const std::string& name) {
  for (const Case& c : AllCases()) {
    if (c.name == name) return c;
  }
  ADD_FAILURE() << name;
  return {};
}

Stream::Stream(const Case& c, std::int64_t count, std::uint32_t seed)
    : config(c.config),
      shape(c.shape),
      tokens(count),
      feature_dim(Make(c)->map_dim()),
      keys(NormalNumbers(count * shape.key_row(), seed,
                         1.0F / std::sqrt(static_cast<float>(shape.key_dim)))),
      values(NormalNumbers(count * shape.value_row(), seed + 1)),
      mask(Size(count), 1) {
  const std::int64_t gates = config.update.decay == Decay::kPerToken     ? 1
                             : config.update.decay == Decay::kPerFeature ? feature_dim
                                                                         : 0;
  log_decays = LogDecays(count * shape.kv_heads * gates, seed + 2, -0.3F);
  if (config.update.delta) {
    rates = NormalNumbers(count * shape.kv_heads, seed + 3);
    for (float& rate : rates) rate = 1 / (1 + std::exp(-rate));
  }
}

void Stream::Mask(std::int64_t token) { mask[Size(token)] = 0; }

TokenBatch Stream::batch() const {
  const auto elements = [](const std::vector<float>& numbers) {
    return ConstElements{DataType::kF32, numbers.data(), std::ssize(numbers)};
  };
  return {tokens,      elements(keys),       elements(values),
          mask.data(), elements(log_decays), elements(rates)};
}

oracle::Context Stream::context(std::int64_t position) const {
  return {shape.kv_heads,
          shape.query_heads,
          shape.key_dim,
          shape.value_dim,
          static_cast<double>(shape.scale),
          position,
          keys.data(),
          values.data(),
          mask.data()};
}

oracle::Recurrence Stream::recurrence() const {
  oracle::Recurrence rule;
  const UpdateRule& update = config.update;
  rule.normalized = config.normalized;
  rule.read_first = update.read_first;
  const bool by_feature =
      update.decay == Decay::kPerFeature || std::ssize(update.log_decays) > shape.kv_heads;
  rule.decay = [=, this](std::int64_t token, std::int64_t head, std::int64_t feature) {
    if (config.update.decay == Decay::kNone) return 1.0;
    const bool constant = config.update.decay == Decay::kConstant;
    const std::int64_t at = constant ? head : token * shape.kv_heads + head;
    const std::vector<float>& logs = constant ? config.update.log_decays : log_decays;
    return std::exp(static_cast<double>(logs[Size(by_feature ? at * feature_dim + feature : at)]));
  };
  if (update.delta) {
    rule.rate = [this](std::int64_t token, std::int64_t head) {
      return static_cast<double>(rates[Size(token * shape.kv_heads + head)]);
    };
  }
  if (!update.bonus.empty()) {
    rule.bonus = [this](std::int64_t head, std::int64_t feature) {
      return static_cast<double>(config.update.bonus[Size(head * feature_dim + feature)]);
    };
  }
  if (config.feature_map.name == "elu_plus_one") {
    rule.map = [](std::vector<double> x) {
      for (double& n : x) n = n > 0 ? n + 1 : std::exp(n);
      return x;
    };
  }
  if (config.feature_map.name == "taylor") {
    // Of a layer whose scale is 1.
    rule.map = [](const std::vector<double>& x) {
      std::vector<double> features = {1.0};
      features.insert(features.end(), x.begin(), x.end());
      for (std::size_t i = 0; i < x.size(); ++i) {
        for (std::size_t j = i; j < x.size(); ++j) {
          features.push_back(x[i] * x[j] * (i == j ? std::sqrt(0.5) : 1.0));
        }
      }
      return features;
    };
  }
  return rule;
}

std::unique_ptr<const Engine> Make(const Case& c) {
  absl::StatusOr<std::unique_ptr<const Engine>> engine = MakeEngine({c.shape, c.config});
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::shared_ptr<const LayerState> Append(const Engine& engine, const Stream& stream,
                                         const std::shared_ptr<const LayerState>& base,
                                         std::int64_t position,
                                         const std::vector<std::int64_t>& pieces) {
  std::shared_ptr<const LayerState> state = base;
  Scratch scratch;
  for (std::size_t piece = 0; state->position() < position; ++piece) {
    LayerDraft draft(engine, state);
    const std::int64_t count =
        std::min(pieces[piece % pieces.size()], position - state->position());
    const absl::Status status =
        draft.Append(stream.batch(), state->position(), count, nullptr, scratch);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(draft.CheckTail(scratch).ok());
    if (!status.ok()) return state;
    state = draft.Finish();
  }
  return state;
}

std::shared_ptr<const LayerState> At(const Engine& engine, const Stream& stream,
                                     std::int64_t position,
                                     const std::vector<std::int64_t>& pieces) {
  return Append(engine, stream, EmptyLayer(engine), position, pieces);
}

Answers Attend(const Engine& engine, const LayerState& state, const float* queries,
               std::int64_t count) {
  return linear_test::AnswersOf(engine, AttendGroup(state, queries, count));
}

Answers Step(const Engine& engine, const LayerState& state, const float* queries,
             std::int64_t count) {
  return linear_test::AnswersOf(engine, StepGroup(state, queries, count));
}

}  // namespace attnd::engine::gated_test
