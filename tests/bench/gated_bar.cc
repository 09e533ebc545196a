// What decays and delta rules cost beside a plain sum: appends, Steps and queries of one head.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/layer_stream.h"
#include "tests/bench/bars.h"

namespace attnd::bench {
namespace {

using Decay = engine::UpdateRule::Decay;

constexpr std::int64_t kDim = 64;
constexpr std::int64_t kTokens = 4096;

std::vector<float> Numbers(std::int64_t count, std::uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

// Between `most` and 0, or 0 and `most`.
std::vector<float> Gates(std::int64_t count, std::uint32_t seed, float most) {
  std::vector<float> numbers = Numbers(count, seed, 1.0F);
  for (float& number : numbers) number = most / (1 + std::exp(-number));
  return numbers;
}

struct Rule {
  const char* name;
  engine::UpdateRule update;
};

std::vector<Rule> Rules() {
  std::vector<Rule> rules(6);
  rules[0].name = "sum (identity)";
  rules[1] = {"decay per token (Mamba-2)", {.decay = Decay::kPerToken}};
  rules[2] = {"decay per feature (GLA)", {.decay = Decay::kPerFeature}};
  rules[3] = {
      "the same, read first (RWKV-6)",
      {.decay = Decay::kPerFeature, .read_first = true, .bonus = std::vector<float>(kDim, 0.5F)}};
  rules[4] = {"delta (DeltaNet)", {.delta = true}};
  rules[5] = {"decay per token, delta (Gated DeltaNet)",
              {.decay = Decay::kPerToken, .delta = true}};
  return rules;
}

class GatedLayer {
 public:
  explicit GatedLayer(const Rule& rule) : engine_(Make(rule)) { Append(kTokens, kTokens); }

  // `count` tokens in pieces.
  void Append(std::int64_t count, std::int64_t piece) {
    for (std::int64_t done = 0; done < count; done += piece) {
      engine::LayerDraft draft(*engine_, state_);
      if (!draft.Append(Batch(), done, piece, nullptr, scratch_).ok()) std::abort();
      if (!draft.CheckTail(scratch_).ok()) std::abort();
      state_ = draft.Finish();
    }
  }
  void Attend() { Run(engine::AttendGroup(*state_, queries_.data(), 1)); }
  // Tokens of one block and their queries, in pieces.
  void Step(std::int64_t piece) {
    for (std::int64_t done = 0; done < engine::kBlockTokens; done += piece) {
      Append(piece, piece);
      Run(engine::StepGroup(*state_, queries_.data() + done * kDim, piece));
    }
  }

 private:
  static std::unique_ptr<const engine::Engine> Make(const Rule& rule) {
    engine::LinearConfig linear;
    linear.feature_map.name = "identity";
    linear.normalized = false;
    linear.update = rule.update;
    auto made = engine::MakeEngine({{1, 1, kDim, kDim, 1.0F}, linear});
    if (!made.ok()) std::abort();
    return *std::move(made);
  }
  engine::TokenBatch Batch() const {
    const auto elements = [](const std::vector<float>& numbers) {
      return engine::ConstElements{engine::DataType::kF32, numbers.data(), std::ssize(numbers)};
    };
    return {kTokens, elements(keys_),   elements(values_),
            nullptr, elements(decays_), elements(rates_)};
  }
  void Run(const engine::QueryGroup& group) {
    engine::AnswerView view;
    view.outputs = outputs_.data();
    plan_->Reset(group, view);
    for (std::int64_t chain = 0; chain < plan_->chains(); ++chain) {
      while (!plan_->Run(chain, scratch_)) {
      }
    }
    plan_->Finish(scratch_);
  }

  const std::unique_ptr<const engine::Engine> engine_;
  const std::vector<float> keys_ = Numbers(kTokens * kDim, 1, 0.125F);  // of length 1
  const std::vector<float> values_ = Numbers(kTokens * kDim, 2, 1.0F);
  const std::vector<float> queries_ = Numbers(engine::kBlockTokens * kDim, 3, 1.0F);
  const std::vector<float> decays_ = Gates(kTokens * engine_->tail_layout().log_decays, 4, -0.15F);
  const std::vector<float> rates_ = Gates(kTokens * engine_->tail_layout().rates, 5, 1.0F);
  std::vector<float> outputs_ = std::vector<float>(engine::kBlockTokens * kDim);
  engine::Scratch scratch_;
  std::shared_ptr<const engine::LayerState> state_ = engine::EmptyLayer(*engine_);
  const std::unique_ptr<engine::AttendPlan> plan_ = engine_->NewPlan();
};

}  // namespace

std::vector<Bar> GatedBars(const BenchOptions& options) {
  constexpr int kRepeats = 20;
  const auto repeated = [&](auto&& work, std::int64_t tokens) {
    return MedianSeconds(options,
                         [&] {
                           for (int i = 0; i < kRepeats; ++i) work();
                         }) *
           1e6 / static_cast<double>(kRepeats * tokens);
  };
  std::printf("us per token, and of one query; one head, c = d_v = %lld\n",
              static_cast<long long>(kDim));
  for (const Rule& rule : Rules()) {
    GatedLayer layer(rule);
    const double append = MedianSeconds(options, [&] { layer.Append(kTokens, kTokens); }) * 1e6 /
                          static_cast<double>(kTokens);
    const double steps = repeated([&] { layer.Step(engine::kBlockTokens); }, engine::kBlockTokens);
    const double single = repeated([&] { layer.Step(1); }, engine::kBlockTokens);
    const double attend = repeated([&] { layer.Attend(); }, 1);
    std::printf("%-40s append %.2f, Steps of 64 %.2f, Steps of 1 %.2f; one query %.2f\n", rule.name,
                append, steps, single, attend);
  }
  return {};
}

}  // namespace attnd::bench
