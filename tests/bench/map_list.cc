#include "tests/bench/map_list.h"

#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <initializer_list>

#include "engine/efficient/efficient_engine.h"
#include "engine/linear/map_weights.h"
#include "tests/bench/distillation.h"

namespace attnd::bench {
namespace {

using engine::FeatureMapConfig;

// 256 features for all maps that have a choice, so that their states are of one size.
void Features256(const Sample&, FeatureMapConfig& config) { config.features = 256; }
void Features128(const Sample&, FeatureMapConfig& config) { config.features = 128; }
void Rolls3(const Sample&, FeatureMapConfig& config) { config.nu = 3; }
void HorizonOfTheContext(const Sample& sample, FeatureMapConfig& config) {
  config.horizon = sample.tokens;
}

// Per component over all rows [n, dim]: the mean and the mean square.
struct Moments {
  Moments(std::span<const float> rows, std::size_t dim) : means(dim), squares(dim) {
    const double weight = static_cast<double>(dim) / static_cast<double>(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto x = static_cast<double>(rows[i]);
      means[i % dim] += weight * x;
      squares[i % dim] += weight * x * x;
    }
  }
  std::vector<double> means;
  std::vector<double> squares;
};

// psi and A as FAVOR# (Likhosherstov et al. 2023, arXiv:2302.00787) chooses them: psi brings
// queries and keys to equal mean squares, component by component, and A makes the logarithm of the
// variance smallest for the mean of ||q' + k'||^2 over all pairs (arXiv:2205.15317, theorem 3.2).
void FitSharpness(const Sample& sample, FeatureMapConfig& config) {
  config.features = 256;
  const auto dim = static_cast<std::size_t>(sample.shape.key_dim);
  const auto scale = static_cast<double>(sample.shape.scale);
  const Moments queries(sample.queries, dim);
  const Moments keys(sample.keys, dim);
  double length_squared = 0;
  for (std::size_t i = 0; i < dim; ++i) {
    const double psi = std::sqrt(std::sqrt(keys.squares[i] / queries.squares[i]));
    config.key_scales.push_back(static_cast<float>(psi));
    length_squared += scale * (queries.squares[i] * psi * psi + keys.squares[i] / (psi * psi) +
                               2 * queries.means[i] * keys.means[i]);
  }
  const auto d = static_cast<double>(dim);
  const double b = 2 * length_squared + d;
  const double rho = (std::sqrt(b * b + 8 * d * length_squared) - b) / (4 * length_squared);
  config.sharpness = static_cast<float>((1 - 1 / rho) / 8);
}

// The same weights for all heads, keys and queries: W = `factors`, one below the other, times I.
void SetIdentityWeights(const Sample& sample, engine::MapActivation activation,
                        std::initializer_list<float> factors, FeatureMapConfig& config) {
  const std::int64_t d = sample.shape.key_dim;
  const engine::MapWeightsShape shape = {
      activation, sample.shape.kv_heads,   sample.shape.query_heads,
      d,          std::ssize(factors) * d, false,
      false};
  std::vector<float> head;
  for (const float factor : factors) {
    for (std::int64_t i = 0; i < d * d; ++i) head.push_back(i % (d + 1) == 0 ? factor : 0.0F);
  }
  engine::MapWeightsBuilder builder(shape);
  while (!builder.complete()) {
    if (!builder.Add(head.data(), std::ssize(head)).ok()) std::abort();
  }
  config.weights = builder.Finish();
}

// Hedgehog (arXiv:2402.04347) where its training begins: W = I and no bias. Its two forms: [exp(x),
// exp(-x)], and with a softmax over the features of each half.
void HedgehogExpStart(const Sample& sample, FeatureMapConfig& config) {
  SetIdentityWeights(sample, engine::MapActivation::kExp, {1.0F, -1.0F}, config);
}
void HedgehogStart(const Sample& sample, FeatureMapConfig& config) {
  SetIdentityWeights(sample, engine::MapActivation::kHedgehog, {1.0F}, config);
}

constexpr BenchMap kMaps[] = {
    {"elu_plus_one", "", nullptr},
    {"relu", "epsilon 0", nullptr},
    {"squared_relu", "", nullptr},
    {"favor_positive", "m 256", Features256},
    {"favor_hyperbolic", "m 128", Features128},
    {"favor_sharp", "m 256, A and psi fitted", FitSharpness},
    {"random_fourier", "m 128", Features128},
    {"cosformer", "M = tokens", HorizonOfTheContext},
    {"dpfp", "nu 3", Rolls3},
    {"taylor", "", nullptr},
    {"efficient", "", nullptr},
    {"learned exp(x), exp(-x); identity weights, untrained", "", HedgehogExpStart, "learned"},
    {"learned hedgehog; identity weights, untrained", "", HedgehogStart, "learned"},
};

constexpr BenchMap kDistilledMaps[] = {
    {"learned exp(x), exp(-x); identity weights, untrained", "", HedgehogExpStart, "learned"},
    {"learned exp(W x); distilled from softmax", "",
     [](const Sample& sample, FeatureMapConfig& config) { config.weights = DistilSoftmax(sample); },
     "learned"},
};

}  // namespace

std::span<const BenchMap> BenchMaps() { return kMaps; }
std::span<const BenchMap> DistilledMaps() { return kDistilledMaps; }

engine::LinearConfig ConfigOf(const BenchMap& map, const Sample& sample, std::uint64_t seed) {
  engine::LinearConfig config;
  config.feature_map.name = map.registered;
  if (map.configure != nullptr) map.configure(sample, config.feature_map);
  if (config.feature_map.features > 0) config.feature_map.seed = seed;
  // Its rows of weights add up to 1: it has no guard to set.
  if (config.feature_map.name != engine::kEfficientName) config.guard_epsilon = 1e-30F;
  return config;
}

}  // namespace attnd::bench
