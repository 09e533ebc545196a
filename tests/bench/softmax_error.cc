#include "tests/bench/softmax_error.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include "engine/engine_config.h"
#include "tests/bench/bars.h"
#include "tests/bench/layer_run.h"
#include "tests/bench/machine.h"

namespace attnd::bench {
namespace {

constexpr int kRuns = 3;
constexpr std::uint64_t kSeeds = 3;

std::unique_ptr<const engine::Engine> Make(const engine::EngineConfig& config) {
  auto made = engine::MakeEngine(config);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    std::abort();
  }
  return *std::move(made);
}

Errors Summary(std::vector<double> errors, std::int64_t refused) {
  const auto rows = static_cast<double>(errors.size());
  double squares = 0;
  for (const double error : errors) squares += error * error;
  const auto at = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() * 99 / 100);
  std::nth_element(errors.begin(), at, errors.end());
  return {std::sqrt(squares / rows), *at, static_cast<double>(refused) / rows};
}

// Runs an engine on layers of one set and keeps the times.
class Stopwatch {
 public:
  // The answers of the last run are the attender's.
  void Run(const engine::Engine& engine, const data::Layer& layer, int runs, Attender& attender) {
    for (int run = 0; run < runs; ++run) {
      const double start = ThreadSeconds();
      const auto state = Append(engine, layer.keys, layer.values, scratch_);
      const double appended = ThreadSeconds();
      attender.Attend(*state, layer.queries, scratch_);
      append_seconds_.push_back(appended - start);
      attend_seconds_.push_back(ThreadSeconds() - appended);
    }
  }

  Costs CostsOf(const engine::Engine& engine, std::int64_t tokens) const {
    const engine::LayerShape& shape = engine.shape();
    const auto rows = 1e-6 * static_cast<double>(tokens);
    return {(engine.fixed_bytes() + engine.bytes_per_token() * tokens) / shape.kv_heads,
            Median(append_seconds_) / (rows * static_cast<double>(shape.kv_heads)),
            Median(attend_seconds_) / (rows * static_cast<double>(shape.query_heads))};
  }

 private:
  engine::Scratch scratch_;
  std::vector<double> append_seconds_;
  std::vector<double> attend_seconds_;
};

}  // namespace

SoftmaxTruth::SoftmaxTruth(data::TensorSet set) : set_(std::move(set)) {
  const float root = std::sqrt(set_.shape.scale);
  set_.shape.scale = 1.0F;
  const auto exact = Make({set_.shape, engine::ExactConfig{}});
  const auto heads = static_cast<std::size_t>(set_.shape.kv_heads);
  const auto dim = static_cast<std::size_t>(set_.shape.value_dim);
  Stopwatch stopwatch;
  Attender attender(*exact);
  for (data::Layer& layer : set_.layers) {
    for (float& x : layer.queries) x *= root;
    for (float& x : layer.keys) x *= root;
    stopwatch.Run(*exact, layer, 1, attender);
    outputs_.push_back(attender.outputs());

    std::vector<double> means(heads * dim);
    const double weight = 1 / static_cast<double>(set_.tokens);
    for (std::size_t i = 0; i < layer.values.size(); ++i) {
      means[i % means.size()] += weight * static_cast<double>(layer.values[i]);
    }
    std::vector<double> spreads(heads);
    for (std::size_t i = 0; i < layer.values.size(); ++i) {
      const double off = static_cast<double>(layer.values[i]) - means[i % means.size()];
      spreads[i % means.size() / dim] += weight * off * off;
    }
    for (double& spread : spreads) spread = std::sqrt(spread);
    means_.push_back(std::move(means));
    spreads_.push_back(std::move(spreads));
  }
  costs_ = stopwatch.CostsOf(*exact, set_.tokens);
}

void SoftmaxTruth::AddErrors(std::size_t layer, const std::vector<float>& outputs,
                             std::vector<double>& errors) const {
  const auto dim = static_cast<std::size_t>(set_.shape.value_dim);
  const auto heads = static_cast<std::size_t>(set_.shape.query_heads);
  const auto group = static_cast<std::size_t>(set_.shape.group_size());
  const std::vector<float>& truth = outputs_[layer];
  for (std::size_t row = 0; row * dim < truth.size(); ++row) {
    double squares = 0;
    for (std::size_t i = row * dim; i < (row + 1) * dim; ++i) {
      const double off = static_cast<double>(outputs[i]) - static_cast<double>(truth[i]);
      squares += off * off;
    }
    errors.push_back(std::sqrt(squares) / spreads_[layer][row % heads / group]);
  }
}

Errors SoftmaxTruth::OfMeanValue() const {
  const auto dim = static_cast<std::size_t>(set_.shape.value_dim);
  const auto heads = static_cast<std::size_t>(set_.shape.query_heads);
  const auto group = static_cast<std::size_t>(set_.shape.group_size());
  std::vector<double> errors;
  for (std::size_t layer = 0; layer < outputs_.size(); ++layer) {
    std::vector<float> answers(outputs_[layer].size());
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const std::size_t head = i / dim % heads / group;
      answers[i] = static_cast<float>(means_[layer][head * dim + i % dim]);
    }
    AddErrors(layer, answers, errors);
  }
  return Summary(std::move(errors), 0);
}

MapFigures SoftmaxTruth::Measure(const BenchMap& map, const data::TensorSet& fitted_to) const {
  MapFigures figures;
  std::vector<double> errors;
  std::int64_t refused = 0;
  Stopwatch stopwatch;
  for (std::size_t l = 0; l < set_.layers.size(); ++l) {
    const data::Layer& layer = set_.layers[l];
    const data::Layer& fitted = fitted_to.layers[l];
    const Sample sample = {set_.shape, fitted_to.tokens, fitted.queries, fitted.keys};
    std::uint64_t seeds = 1;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
      const engine::LinearConfig config = ConfigOf(map, sample, seed);
      if (config.feature_map.features > 0) seeds = kSeeds;  // it is random
      const auto sharpness = static_cast<double>(config.feature_map.sharpness);
      const bool first = errors.empty();
      figures.least_sharpness = first ? sharpness : std::min(figures.least_sharpness, sharpness);
      figures.largest_sharpness =
          first ? sharpness : std::max(figures.largest_sharpness, sharpness);

      const auto linear = Make({set_.shape, config});
      Attender attender(*linear);
      stopwatch.Run(*linear, layer, kRuns, attender);
      figures.costs = stopwatch.CostsOf(*linear, set_.tokens);
      figures.features = linear->map_dim();
      figures.sum_bytes = 8 * linear->map_dim() * (set_.shape.value_dim + 1);
      AddErrors(l, attender.outputs(), errors);
      for (const std::uint8_t flag : attender.flags()) {
        refused += static_cast<engine::RowFlag>(flag) == engine::RowFlag::kOk ? 0 : 1;
      }
    }
  }
  figures.errors = Summary(std::move(errors), refused);
  return figures;
}

}  // namespace attnd::bench
