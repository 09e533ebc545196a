// Kernel density estimates against exact attention, on word vectors at the scale of the KDEformer
// paper and on real heads. Queries and keys are rows divided by 10^0.25 and the scale is 1; values
// are later rows, which know nothing of the keys. Times are the calling thread's, both engines
// one after the other in each round.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_config.h"
#include "engine/layer_stream.h"
#include "tests/bench/bars.h"
#include "tests/bench/layer_run.h"
#include "tests/bench/machine.h"
#include "tests/bench/output_error.h"
#include "tests/data/real_data.h"

namespace attnd::bench {
namespace {

// The targets that are tried, in units of the values' spread, loose to tight.
constexpr double kTargets[] = {0.065, 0.045,  0.03,  0.025,  0.022,  0.02,   0.017,
                               0.014, 0.012,  0.01,  0.0085, 0.007,  0.006,  0.005,
                               0.004, 0.0035, 0.003, 0.0025, 0.0018, 0.0012, 0.0008};

// What a row of the table of bars must keep to beside its operator norm.
constexpr double kMostFrobenius = 0.04;
constexpr double kMostRowP99 = 0.12;
constexpr double kStrictOperatorNorm = 0.01;  // at errors up to it

// Below this share of the FMA peak the exact engine is no measure.
constexpr double kLeastExactShare = 0.6;

// One context, the queries that it is asked, and where they stand.
struct Problem {
  std::string name;
  engine::LayerShape shape;
  std::int64_t tokens = 0;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> queries;           // [rows, Hq, d_k]
  std::vector<std::int64_t> positions;  // of the queries' own tokens; empty: unknown
};

struct Figures {
  double target = 0;
  double speed = 0;  // exact time / kde time
  double query_us = 0;
  double keys = 0;  // mean share of the context's keys that were evaluated
  OutputError error;
};

std::unique_ptr<const engine::Engine> Make(const engine::LayerShape& shape,
                                           const engine::KdeConfig* kde) {
  engine::EngineConfig config;
  config.shape = shape;
  config.kind = engine::ExactConfig{};
  if (kde != nullptr) config.kind = *kde;
  auto made = engine::MakeEngine(config);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", std::string(made.status().message()).c_str());
    std::abort();
  }
  return std::move(made).value();
}

// Both engines after the same tokens.
class Pair {
 public:
  Pair(const Problem& problem, engine::KdeConfig::Mode mode)
      : problem_(problem),
        // Audits as in a session that has been asked for a while, from the start: what they learn
        // at first costs a quarter more, until 200 are made.
        kde_config_{.mode = mode, .audits = {0.01, 0.01}} {
    double start = ThreadSeconds();
    exact_state_ = Append(*exact_, problem.keys, problem.values, scratch_);
    const double exact_append = ThreadSeconds() - start;
    start = ThreadSeconds();
    kde_state_ = Append(*kde_, problem.keys, problem.values, scratch_);
    upkeep_seconds_ = ThreadSeconds() - start - exact_append;
    exact_seconds_ = TimeExact();
    exact_outputs_ = exact_attender_.outputs();
  }

  // What keeping the index takes beyond storing the tokens.
  double upkeep_seconds() const { return upkeep_seconds_; }
  double exact_seconds() const { return exact_seconds_; }
  double exact_pass_seconds() const {
    return exact_seconds_ / Rows() * static_cast<double>(problem_.tokens);
  }
  double bytes_per_token() const {
    return static_cast<double>(kde_state_->bytes()) / static_cast<double>(problem_.tokens);
  }

  double GflopsOfExact() const {
    const engine::LayerShape& shape = problem_.shape;
    return 2e-9 * Rows() *
           static_cast<double>(shape.query_heads * problem_.tokens *
                               (shape.key_dim + shape.value_dim)) /
           exact_seconds_;
  }

  OutputError OfMeanValue() const {
    return CompareOutputs(MeanValueRows(problem_.values, problem_.shape.output_row(),
                                        static_cast<std::int64_t>(Rows())),
                          exact_outputs_, problem_.shape.output_row());
  }

  // The ratio of the exact engine's time, before and after, to the median of `rounds` rounds of the
  // other's, and the error.
  Figures Measure(double target, int rounds) {
    Figures figures;
    figures.target = target;
    const double exact = TimeExact();
    std::vector<double> times;
    for (int round = 0; round < rounds; ++round) {
      const double start = ThreadSeconds();
      kde_attender_.Attend(*kde_state_, problem_.queries, Asked(target), scratch_);
      times.push_back(ThreadSeconds() - start);
    }
    figures.speed = 0.5 * (exact + TimeExact()) / Median(times);
    figures.query_us = 1e6 * Median(times) / Rows();
    double keys = 0;
    for (const std::int64_t count : kde_attender_.keys_evaluated()) {
      keys += static_cast<double>(count);
    }
    figures.keys = keys / static_cast<double>(kde_attender_.keys_evaluated().size()) /
                   static_cast<double>(problem_.tokens);
    figures.error =
        CompareOutputs(kde_attender_.outputs(), exact_outputs_, problem_.shape.output_row());
    return figures;
  }

  // Query by query, the times added up; errors of all.
  Figures MeasureOneByOne(double target) {
    Figures figures;
    figures.target = target;
    double exact = 0;
    double kde = 0;
    std::vector<float> outputs;
    const auto row = static_cast<std::size_t>(problem_.shape.query_row());
    for (std::size_t first = 0; first < problem_.queries.size(); first += row) {
      const std::span<const float> query(problem_.queries.data() + first, row);
      double start = ThreadSeconds();
      exact_attender_.Attend(*exact_state_, query, scratch_);
      exact += ThreadSeconds() - start;
      start = ThreadSeconds();
      kde_attender_.Attend(*kde_state_, query, {.accuracy = {.target_error = target}}, scratch_);
      kde += ThreadSeconds() - start;
      outputs.insert(outputs.end(), kde_attender_.outputs().begin(), kde_attender_.outputs().end());
    }
    figures.speed = exact / kde;
    figures.query_us = 1e6 * kde / Rows();
    figures.error = CompareOutputs(outputs, exact_outputs_, problem_.shape.output_row());
    return figures;
  }

 private:
  double Rows() const {
    const std::int64_t rows =
        static_cast<std::int64_t>(problem_.queries.size()) / problem_.shape.query_row();
    return static_cast<double>(rows);
  }

  AskedOf Asked(double target) const {
    return {.accuracy = {.target_error = target},
            .positions = problem_.positions.empty() ? nullptr : problem_.positions.data()};
  }

  double TimeExact() {
    const double start = ThreadSeconds();
    exact_attender_.Attend(*exact_state_, problem_.queries, scratch_);
    return ThreadSeconds() - start;
  }

  const Problem& problem_;
  const engine::KdeConfig kde_config_;
  const std::unique_ptr<const engine::Engine> exact_ = Make(problem_.shape, nullptr);
  const std::unique_ptr<const engine::Engine> kde_ = Make(problem_.shape, &kde_config_);
  engine::Scratch scratch_;
  Attender exact_attender_{*exact_};
  Attender kde_attender_{*kde_};
  std::shared_ptr<const engine::LayerState> exact_state_;
  std::shared_ptr<const engine::LayerState> kde_state_;
  double upkeep_seconds_ = 0;
  double exact_seconds_ = 0;
  std::vector<float> exact_outputs_;
};

constexpr std::int64_t kWordDim = 100;
constexpr engine::LayerShape kWordShape = {1, 1, kWordDim, kWordDim, 1.0F};

// Rows `first`, `first + step`, ... of the word vectors, `count` of them.
std::vector<float> Rows(const std::vector<float>& words, std::int64_t first, std::int64_t count,
                        std::int64_t step, float factor) {
  std::vector<float> rows;
  rows.reserve(static_cast<std::size_t>(count * kWordDim));
  for (std::int64_t row = 0; row < count; ++row) {
    const float* from = words.data() + (first + row * step) * kWordDim;
    for (std::int64_t i = 0; i < kWordDim; ++i) rows.push_back(from[i] * factor);
  }
  return rows;
}

const float kPaperScale = static_cast<float>(1.0 / std::pow(10.0, 0.25));
constexpr std::int64_t kBatch = 8192;  // queries, spread evenly over the context

enum class Values { kUnrelated, kKeys };

// Q = K: the queries are some of the keys.
Problem SelfQueries(const std::vector<float>& words, std::int64_t tokens, Values values,
                    bool own_token) {
  Problem problem{.name = "", .shape = kWordShape, .tokens = tokens};
  problem.keys = Rows(words, 0, tokens, 1, kPaperScale);
  const std::int64_t available = static_cast<std::int64_t>(words.size()) / kWordDim - tokens;
  problem.values = values == Values::kKeys
                       ? problem.keys
                       : Rows(words, std::min(tokens, available), tokens, 1, 1.0F);
  const std::int64_t batch = std::min(kBatch, tokens);
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::int64_t row = i * tokens / batch;
    problem.queries.insert(problem.queries.end(), problem.keys.begin() + row * kWordDim,
                           problem.keys.begin() + (row + 1) * kWordDim);
    if (own_token) problem.positions.push_back(row);
  }
  return problem;
}

// Q != K: even rows are keys, odd ones queries.
Problem OddQueries(const std::vector<float>& words, std::int64_t tokens, std::int64_t queries) {
  Problem problem{.name = "", .shape = kWordShape, .tokens = tokens};
  problem.keys = Rows(words, 0, tokens, 2, kPaperScale);
  problem.values = Rows(words, 1, tokens, 1, 1.0F);
  std::reverse(problem.values.begin(), problem.values.end());
  const std::int64_t step = tokens / queries;
  problem.queries = Rows(words, 1, queries, 2 * step, kPaperScale);
  return problem;
}

void PrintHead() {
  std::printf(
      "\n| set | target | op | fro | row p50 | row p99 | row max | keys | us a query | of exact |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n");
}

void PrintError(const std::string& name, const std::string& target, const OutputError& error) {
  std::printf("| %s | %s | %.4f | %.4f | %.4f | %.4f | %.3f |", name.c_str(), target.c_str(),
              error.operator_norm, error.frobenius, error.row_median, error.row_p99, error.row_max);
}

void Print(const std::string& name, const Figures& figures) {
  char target[16];
  std::snprintf(target, sizeof target, "%.3g", figures.target);
  PrintError(name, target, figures.error);
  std::printf(" %.2f %% | %.2f | %.1fx |\n", 100 * figures.keys, figures.query_us, figures.speed);
  std::fflush(stdout);
}

// A row of the table: at `error` the kde engine is at least so many times as fast as the exact one.
struct Goal {
  double error;
  double speed;
};

bool Keeps(const Figures& figures, double error) {
  if (figures.error.operator_norm > error) return false;
  return error > kStrictOperatorNorm ||
         (figures.error.frobenius <= kMostFrobenius && figures.error.row_p99 <= kMostRowP99);
}

// Measures the problem at all targets; a bar for each goal, of the fastest that keeps to it.
// Time per query at the first goal to `query_us`, 0 where none keeps to it.
std::vector<Bar> MeasureGoals(const Problem& problem, Pair& pair, std::span<const Goal> goals,
                              double peak_gflops, double* query_us = nullptr) {
  const std::size_t queries = problem.queries.size() / kWordDim;
  PrintError(problem.name, "mean(V)", pair.OfMeanValue());
  const double share = pair.GflopsOfExact() / peak_gflops;
  std::printf(" | %.1f | exact: %.0f %% of FMA peak |\n",
              1e6 * pair.exact_seconds() / static_cast<double>(queries), 100 * share);
  std::vector<Figures> all;
  for (const double target : kTargets) {
    all.push_back(pair.Measure(target, 3));
    Print(problem.name, all.back());
  }
  std::vector<Bar> bars;
  if (query_us != nullptr) *query_us = 0;
  for (const Goal& goal : goals) {
    const Figures* best = nullptr;
    for (const Figures& figures : all) {
      if (Keeps(figures, goal.error) && (best == nullptr || figures.speed > best->speed)) {
        best = &figures;
      }
    }
    if (query_us != nullptr && &goal == goals.data() && best != nullptr) *query_us = best->query_us;
    char name[96];
    std::snprintf(name, sizeof name, "kde_%s_at_%g", problem.name.c_str(), goal.error);
    const double speed = best == nullptr || share < kLeastExactShare ? 0.0 : best->speed;
    if (share < kLeastExactShare) std::printf("void: %s, the exact engine is too slow\n", name);
    bars.push_back({name, speed, goal.speed, false});
  }
  return bars;
}

// The exponent of n in time per query, by least squares over the logarithms.
double Exponent(const std::vector<std::pair<double, double>>& points) {
  double x_mean = 0;
  double y_mean = 0;
  for (const auto& [n, us] : points) {
    x_mean += std::log(n) / static_cast<double>(points.size());
    y_mean += std::log(us) / static_cast<double>(points.size());
  }
  double xy = 0;
  double xx = 0;
  for (const auto& [n, us] : points) {
    xy += (std::log(n) - x_mean) * (std::log(us) - y_mean);
    xx += (std::log(n) - x_mean) * (std::log(n) - x_mean);
  }
  return xy / xx;
}

struct WordRow {
  std::int64_t tokens;
  std::vector<Goal> with_own;
  std::vector<Goal> without;
  double most_upkeep;  // of an exact pass of n queries; 0: no bar
};

std::vector<WordRow> WordRows() {
  return {{8192, {{0.01, 9}}, {{0.01, 4}}, 0},
          {16384, {{0.01, 16}, {0.005, 7}}, {{0.01, 8}, {0.005, 4}}, 0.08},
          {65536, {{0.01, 30}, {0.005, 10}}, {{0.01, 8}, {0.005, 5}}, 0.03},
          {100000, {{0.01, 40}}, {{0.01, 12}}, 0},
          {131071, {{0.01, 40}}, {{0.01, 12}}, 0},
          {131072, {{0.01, 50}, {0.005, 15}}, {{0.01, 15}, {0.005, 8}}, 0}};
}

std::string Name(std::int64_t tokens, const char* what) { return std::to_string(tokens) + what; }

std::vector<Bar> WordBars(const std::vector<float>& words, double peak) {
  const std::int64_t available = static_cast<std::int64_t>(words.size()) / kWordDim;
  std::vector<Bar> bars;
  const auto add = [&](std::vector<Bar> more) {
    for (Bar& bar : more) bars.push_back(std::move(bar));
  };
  std::array<std::vector<std::pair<double, double>>, 2> growth;
  for (const WordRow& row : WordRows()) {
    if (row.tokens + std::min<std::int64_t>(row.tokens, 16384) > available) {
      std::printf("Left out, too few word vectors: %lld tokens\n",
                  static_cast<long long>(row.tokens));
      continue;
    }
    for (const bool own : {true, false}) {
      Problem problem = SelfQueries(words, row.tokens, Values::kUnrelated, own);
      problem.name = Name(row.tokens, own ? "_own" : "");
      Pair pair(problem, engine::KdeConfig::Mode::kAuto);
      double us = 0;
      add(MeasureGoals(problem, pair, own ? row.with_own : row.without, peak, &us));
      if (us > 0) {
        growth[own ? 0 : 1].emplace_back(static_cast<double>(row.tokens), us);
      }
      if (!own) continue;
      const double upkeep = pair.upkeep_seconds() / pair.exact_pass_seconds();
      std::printf(
          "\n%lld tokens: index build and upkeep %.0f ms, %.2f us a token, %.2f %% of an exact "
          "pass; "
          "%.0f bytes a token\n\n",
          static_cast<long long>(row.tokens), 1e3 * pair.upkeep_seconds(),
          1e6 * pair.upkeep_seconds() / static_cast<double>(row.tokens), 100 * upkeep,
          pair.bytes_per_token());
      if (row.most_upkeep > 0) {
        bars.push_back({"kde_" + Name(row.tokens, "_upkeep"), upkeep, row.most_upkeep, true});
      }
    }
  }
  constexpr std::int64_t kLong = 131072;
  if (2 * kLong <= available) {
    Problem problem = SelfQueries(words, kLong, Values::kKeys, true);
    problem.name = Name(kLong, "_values_are_keys");
    Pair pair(problem, engine::KdeConfig::Mode::kAuto);
    const Goal goal = {0.02, 40};
    add(MeasureGoals(problem, pair, std::span(&goal, 1), peak));

    Problem single = OddQueries(words, kLong, 512);
    single.name = Name(kLong, "_one_query");
    double loose = 0;
    double tight = 0;
    const auto one_by_one = [&](engine::KdeConfig::Mode mode, const std::string& name,
                                std::span<const double> targets) {
      Pair pair(single, mode);
      for (const double target : targets) {
        const Figures figures = pair.MeasureOneByOne(target);
        Print(name, figures);
        if (figures.error.row_p99 <= 0.03) loose = std::max(loose, figures.speed);
        if (figures.error.row_p99 <= 0.01) tight = std::max(tight, figures.speed);
      }
    };
    one_by_one(engine::KdeConfig::Mode::kAuto, single.name, kTargets);
    constexpr double kCertifiedTargets[] = {0.05, 0.02};
    one_by_one(engine::KdeConfig::Mode::kCertified, single.name + "_certified", kCertifiedTargets);
    bars.push_back({"kde_" + single.name + "_p99_0.03", loose, 20, false});
    bars.push_back({"kde_" + single.name + "_p99_0.01", tight, 4, false});
  }
  const std::array<double, 2> most = {0.45, 0.6};
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
    if (growth[i].size() < 3) continue;
    bars.push_back({i == 0 ? "kde_growth_own" : "kde_growth", Exponent(growth[i]), most[i], true});
  }
  return bars;
}

// The longest heads of real models, in the same form, without bars.
void PrintRealHeads() {
  for (const data::SharedHeads& heads : data::kSharedHeads) {
    if (heads.tokens < 1024) continue;
    std::optional<data::TensorSet> set = data::ReadShared(heads);
    if (!set) {
      std::printf("Not there, left out: ../shared/data/%s\n", heads.name);
      continue;
    }
    for (std::size_t layer = 0; layer < set->layers.size(); ++layer) {
      data::Layer& tensors = set->layers[layer];
      Problem problem{.name = std::string(heads.name) + " layer " + std::to_string(layer),
                      .shape = set->shape,
                      .tokens = set->tokens,
                      .keys = std::move(tensors.keys),
                      .values = std::move(tensors.values),
                      .queries = std::move(tensors.queries)};
      Pair pair(problem, engine::KdeConfig::Mode::kAuto);
      for (const double target : {0.18, 0.045}) Print(problem.name, pair.Measure(target, 3));
    }
  }
}

}  // namespace

std::vector<Bar> KdeBars(const BenchOptions& /*options*/) {
  const std::vector<float> words = data::WordVectorRows();
  if (words.empty())
    std::printf("Not there, left out: word vectors (scripts/fetch_word_vectors.sh)\n");
  PrintHead();
  std::vector<Bar> bars = WordBars(words, MeasureFmaPeakGflops());
  PrintHead();
  PrintRealHeads();
  return bars;
}

}  // namespace attnd::bench
