// Linear attention against the arithmetic it cannot do without: for each feature map its products
// at the same shapes, its elementwise functions over as many numbers, and the f64 fold.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/block.h"
#include "engine/gemm.h"
#include "engine/linear/map_weights.h"
#include "engine/linear/row_loops.h"
#include "engine/simd/maps.h"
#include "engine/simd/totals.h"
#include "tests/bench/bars.h"
#include "tests/bench/layer_run.h"
#include "tests/bench/machine.h"
#include "tests/bench/map_list.h"

namespace attnd::bench {
namespace {

using engine::kBlockTokens;

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kDim = 64;      // d_k = d_v
constexpr std::int64_t kColumns = 80;  // [S | Z], padded
constexpr engine::LayerShape kShape = {1, 1, kDim, kDim, 0.125F};
constexpr std::int64_t kMaxFeatures = 2160;

std::vector<float> Numbers(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& number : numbers) number = normal(random);
  return numbers;
}

// The elementwise functions of a map over a block: c features for each row from d numbers or, after
// a projection, from as many as there are projections.
using Functions = void (*)(const float* x, std::int64_t c, float* y);

// The features' largest and their exponential, row by row because each has a scale of its own.
void ExpRows(const float* x, std::int64_t c, float* y) {
  engine::ScaleRow(x, 0.5F, y, kBlockTokens * kDim);
  for (std::int64_t row = 0; row < kBlockTokens; ++row) {
    const float largest = engine::MaxOf(x + row * c, c);
    engine::ExpShifted(x + row * c, largest, -0.5F, y + row * c, c);
  }
}

void SharpExpRows(const float* x, std::int64_t c, float* y) {
  engine::ScaleRow(x, 0.5F, y, kBlockTokens * c);
  ExpRows(x, c, y);
}

void CosSinRows(const float* x, std::int64_t c, float* y) {
  engine::ScaleRow(x, 0.5F, y, kBlockTokens * kDim);
  engine::CosSin(x, y, y + kBlockTokens * c / 2, kBlockTokens * c / 2);
  engine::ScaleRow(y, 0.5F, y, kBlockTokens * c);
}

// Each row is turned by an angle of its own.
void TurnedRelu(const float* x, std::int64_t c, float* y) {
  engine::Relu(x, 0.0F, y, kBlockTokens * kDim);
  for (std::int64_t row = 0; row < kBlockTokens; ++row) {
    const auto angle = static_cast<double>(x[row]);
    engine::ScaleRow(x + row * c, static_cast<float>(std::sin(angle)), y + row * c, c / 2);
    engine::ScaleRow(x + row * c, static_cast<float>(std::cos(angle)), y + row * c + c / 2, c / 2);
  }
}

void ProductsOfHalves(const float* x, std::int64_t c, float* y) {
  engine::Relu(x, 0.0F, y, kBlockTokens * 2 * kDim);
  engine::ScaleRow(x, 0.5F, y, kBlockTokens * c);
}

// Whether keys are ordinary, and their exponentials, row by row.
void ExpOfKeys(const float* x, std::int64_t c, float* y) {
  float largest = 0;
  for (std::int64_t row = 0; row < kBlockTokens; ++row) {
    largest = std::max(largest, engine::MaxAbs(x + row * c, c));
  }
  for (std::int64_t row = 0; row < kBlockTokens; ++row) engine::Exp(x + row * c, y + row * c, c);
  y[0] += largest;
}

// The softmax of a query's row, times the reciprocals of its columns' sums.
void SoftmaxOfQueries(const float* x, std::int64_t c, float* y) {
  for (std::int64_t row = 0; row < kBlockTokens; ++row) {
    float* to = y + row * c;
    engine::ScaleRow(x + row * c, 0.125F, to, c);
    engine::ExpShifted(to, engine::MaxOf(to, c), 0.0F, to, c);
    engine::MultiplyRow(x, c, to);
  }
}

void SoftmaxRow(const float* x, std::int64_t m, float* y) {
  engine::ExpShifted(x, engine::MaxOf(x, m), 0.0F, y, m);
  engine::ScaleRow(y, 1.0F / engine::SumOf(y, m), y, m);
}

// Of learned maps: a bias is added to all projections, then comes the activation.
void BiasedRelu(const float* x, std::int64_t c, float* y) {
  engine::AddRow(x, y, kBlockTokens * c);
  engine::Relu(y, 0.0F, y, kBlockTokens * c);
}

void BiasedExp(const float* x, std::int64_t c, float* y) {
  engine::AddRow(x, y, kBlockTokens * c);
  for (std::int64_t row = 0; row < kBlockTokens; ++row) {
    engine::ExpShifted(x + row * c, engine::MaxOf(x + row * c, c), -0.5F, y + row * c, c);
  }
}

void BiasedSoftmax(const float* x, std::int64_t c, float* y) {
  engine::AddRow(x, y, kBlockTokens * c);
  for (std::int64_t row = 0; row < kBlockTokens; ++row) SoftmaxRow(x + row * c, c, y + row * c);
}

// A softmax of a row's projections, another of their negatives.
void BiasedHedgehog(const float* x, std::int64_t c, float* y) {
  const std::int64_t m = c / 2;
  engine::AddRow(x, y, kBlockTokens * m);
  for (std::int64_t row = 0; row < kBlockTokens; ++row) {
    float* const second = y + row * c + m;
    SoftmaxRow(x + row * m, m, y + row * c);
    engine::ScaleRow(x + row * m, -1.0F, second, m);
    SoftmaxRow(second, m, second);
  }
}

struct MapCost {
  const char* map;           // in map_list.h; of learned maps its own
  std::int64_t projections;  // columns of its projection
  Functions functions;
  double target = 1.3;
  Functions query_functions = nullptr;  // where they are others
};

constexpr MapCost kCosts[] = {
    {"elu_plus_one", 0,
     [](const float* x, std::int64_t c, float* y) { engine::EluPlusOne(x, y, kBlockTokens * c); },
     1.25},
    {"relu", 0,
     [](const float* x, std::int64_t c, float* y) { engine::Relu(x, 0.0F, y, kBlockTokens * c); }},
    {"squared_relu", 0,
     [](const float* x, std::int64_t c, float* y) { engine::SquaredRelu(x, y, kBlockTokens * c); }},
    {"favor_positive", 256, ExpRows},
    {"favor_hyperbolic", 128, ExpRows},
    {"favor_sharp", 256, SharpExpRows},
    {"random_fourier", 128, CosSinRows},
    {"cosformer", 0, TurnedRelu},
    {"dpfp", 0, ProductsOfHalves},
    {"taylor", 0,
     [](const float* x, std::int64_t c, float* y) {
       engine::ScaleRow(x, 0.5F, y, kBlockTokens * c);
     }},
    {"efficient", 0, ExpOfKeys, 1.3, SoftmaxOfQueries},
};

// From 64 numbers to as many projections, as T2R and Hedgehog have them.
constexpr std::int64_t kLearnedFeatures = 64;

struct LearnedCost {
  engine::MapActivation activation;
  MapCost cost;
};

constexpr LearnedCost kLearnedCosts[] = {
    {engine::MapActivation::kRelu, {"learned_relu", kLearnedFeatures, BiasedRelu}},
    {engine::MapActivation::kExp, {"learned_exp", kLearnedFeatures, BiasedExp}},
    {engine::MapActivation::kSoftmax, {"learned_softmax", kLearnedFeatures, BiasedSoftmax}},
    {engine::MapActivation::kHedgehog, {"learned_hedgehog", kLearnedFeatures, BiasedHedgehog}},
};

struct Data {
  std::vector<float> keys = Numbers(kRows * kDim, 1);
  std::vector<float> values = Numbers(kRows * kDim, 2);
  std::vector<float> queries = Numbers(kRows * kDim, 3);
  // What the parts work on. Fewer numbers than tokens have: they stay in the cache, as a block's do
  // between a map and its product.
  std::vector<float> features = Numbers(engine::kGemmMaxRows * kMaxFeatures, 4);
  std::vector<float> mapped = Numbers(engine::kGemmMaxRows * kMaxFeatures, 5);
  std::vector<float> summary = Numbers(kMaxFeatures * kColumns, 6);
};

struct Part {
  const char* name;
  std::function<void()> run;
};

// The median over rounds of (whole / sum of parts), all timed in every round: what else runs on the
// machine then slows both. In the thread's processor time.
Bar Compare(const BenchOptions& options, const std::string& name, double target,
            const std::function<void()>& whole, const std::vector<Part>& parts) {
  const auto timed = [](const std::function<void()>& run) {
    const double start = ThreadSeconds();
    run();
    return ThreadSeconds() - start;
  };
  std::vector<double> wholes;
  std::vector<double> ratios;
  std::vector<std::vector<double>> times(parts.size());
  for (int round = -1; round < 3 * options.repetitions; ++round) {
    const double seconds = timed(whole);
    double sum = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const double part = timed(parts[i].run);
      sum += part;
      if (round >= 0) times[i].push_back(part);
    }
    if (round < 0) continue;  // the first warms the caches
    wholes.push_back(seconds);
    ratios.push_back(seconds / sum);
  }
  std::printf("%s of %lld rows: %.0f us;", name.c_str(), static_cast<long long>(kRows),
              Median(wholes) * 1e6);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::printf(" %s%s %.0f", i == 0 ? "" : "+ ", parts[i].name, Median(times[i]) * 1e6);
  }
  std::printf(" us\n");
  return {name, Median(ratios), target, true};
}

// x [rows, d] times the projection's rows, in products of at most `tile` rows.
void Project(const Data& data, std::int64_t projections, std::int64_t tile, Data& to) {
  for (std::int64_t row = 0; projections > 0 && row < kRows; row += tile) {
    const std::int64_t m = engine::GemmPaddedRows(std::min(tile, kRows - row));
    engine::GemmNN(m, projections, kDim, data.queries.data() + row * kDim, kDim,
                   data.summary.data(), projections, false, to.mapped.data(), projections);
  }
}

void Map(Functions functions, std::int64_t c, Data& data) {
  for (std::int64_t row = 0; row < kRows; row += kBlockTokens) {
    functions(data.features.data(), c, data.mapped.data());
  }
}

Bar AppendBar(const BenchOptions& options, const MapCost& cost, const engine::Engine& linear,
              Data& data) {
  engine::Scratch scratch;
  const std::int64_t c = linear.feature_dim();
  const std::int64_t totals = c * (kDim + 1);
  std::vector<float> sums(static_cast<std::size_t>(totals));
  std::vector<double> state_totals(static_cast<std::size_t>(totals));
  const std::shared_ptr<engine::SealedState> state = linear.NewState();
  std::vector<engine::Block> blocks;
  for (std::int64_t row = 0; row < kRows; row += kBlockTokens) {
    blocks.push_back({data.keys.data() + row * kDim, data.values.data() + row * kDim,
                      ~engine::RowMask{0}, nullptr});
  }
  const auto seal = [&] {
    if (!linear.Seal(*state, 0, blocks, scratch).ok()) std::abort();
  };
  const auto product = [&] {
    Project(data, cost.projections, kBlockTokens, data);
    for (std::int64_t row = 0; row < kRows; row += kBlockTokens) {
      engine::GemmTN(c, kDim, kBlockTokens, data.features.data(), c,
                     data.values.data() + row * kDim, kDim, false, sums.data(), kDim);
    }
  };
  const auto fold = [&] {
    for (std::int64_t row = 0; row < kRows; row += kBlockTokens) {
      engine::AddToTotals(sums.data(), 1.0, state_totals.data(), totals);
    }
    engine::RoundTotals(state_totals.data(), sums.data(), totals);
  };
  return Compare(options, std::string("linear_append_") + cost.map, cost.target, seal,
                 {{"sgemm", product},
                  {"functions", [&] { Map(cost.functions, c, data); }},
                  {"f64 fold", fold}});
}

Bar AttendBar(const BenchOptions& options, const MapCost& cost, const engine::Engine& linear,
              Data& data) {
  // 63 sealed blocks and an open block of 64 rows.
  engine::Scratch scratch;
  const auto state = Append(linear, data.keys, data.values, scratch);
  Attender attender(linear);
  const auto attend = [&] { attender.Attend(*state, data.queries, scratch); };

  // phi(Q) [S | Z], phi(Q) phi(K)^T and A [V | 1], as the plan tiles them.
  attend();
  const std::int64_t tiles = attender.chains();
  const std::int64_t tile = engine::GemmPaddedRows((kRows + tiles - 1) / tiles);
  const std::int64_t c = linear.feature_dim();
  std::vector<float> sums(static_cast<std::size_t>(engine::kGemmMaxRows * kColumns));
  std::vector<float> scores(static_cast<std::size_t>(engine::kGemmMaxRows * kBlockTokens));
  const auto product = [&] {
    Project(data, cost.projections, tile, data);
    for (std::int64_t row = 0; row < kRows; row += tile) {
      const std::int64_t m = engine::GemmPaddedRows(std::min(tile, kRows - row));
      engine::GemmNN(m, kColumns, c, data.features.data(), c, data.summary.data(), kColumns, false,
                     sums.data(), kColumns);
      engine::GemmNN(m, kBlockTokens, c, data.features.data(), c, data.mapped.data(), kBlockTokens,
                     false, scores.data(), kBlockTokens);
      engine::GemmNN(m, kColumns, kBlockTokens, scores.data(), kBlockTokens, data.summary.data(),
                     kColumns, true, sums.data(), kColumns);
    }
  };
  const Functions functions =
      cost.query_functions != nullptr ? cost.query_functions : cost.functions;
  return Compare(options, std::string("linear_attend_") + cost.map, cost.target, attend,
                 {{"sgemm", product}, {"functions", [&] { Map(functions, c, data); }}});
}

void AddBars(const BenchOptions& options, const MapCost& cost, const engine::LinearConfig& config,
             Data& data, std::vector<Bar>& bars) {
  const auto linear = engine::MakeEngine({kShape, config});
  if (!linear.ok()) std::abort();
  bars.push_back(AppendBar(options, cost, **linear, data));
  bars.push_back(AttendBar(options, cost, **linear, data));
}

// Each side has weights and biases of its own. Times do not depend on the numbers.
engine::LinearConfig LearnedConfig(engine::MapActivation activation) {
  const engine::MapWeightsShape shape = {activation, 1, 1, kDim, kLearnedFeatures, true, true};
  std::vector<float> numbers = Numbers(shape.numbers(), 7);
  for (float& number : numbers) number *= 0.125F;  // projections have the spread of what they see
  engine::MapWeightsBuilder builder(shape);
  if (!builder.Add(numbers.data(), shape.numbers()).ok()) std::abort();
  engine::LinearConfig config;
  config.feature_map.name = "learned";
  config.feature_map.weights = builder.Finish();
  config.guard_epsilon = 1e-30F;
  return config;
}

}  // namespace

std::vector<Bar> LinearBars(const BenchOptions& options) {
  Data data;
  std::vector<Bar> bars;
  for (const BenchMap& map : BenchMaps()) {
    const engine::LinearConfig config = ConfigOf(map, {kShape, kRows, data.queries, data.keys});
    if (config.feature_map.weights != nullptr) continue;  // bars of their own, below
    const auto* cost = std::find_if(std::begin(kCosts), std::end(kCosts), [&](const MapCost& c) {
      return std::string(c.map) == map.name;
    });
    if (cost == std::end(kCosts)) std::abort();
    AddBars(options, *cost, config, data, bars);
  }
  for (const LearnedCost& learned : kLearnedCosts) {
    AddBars(options, learned.cost, LearnedConfig(learned.activation), data, bars);
  }
  return bars;
}

}  // namespace attnd::bench
