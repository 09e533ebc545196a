#include "tests/engine/kde/audit_draws.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"

namespace attnd::engine::kde_test {
namespace {

constexpr std::int64_t kGroup = 128;
constexpr std::int64_t kJudged = 1000;
constexpr double kRounding = 1e-5;  // of f32, in both answers

// Root mean square of |v - mean v| of each kv-head.
std::vector<double> Spreads(const Tokens& tokens) {
  const LayerShape& shape = tokens.shape;
  std::vector<double> spreads(Size(shape.kv_heads));
  for (std::int64_t column = 0; column < shape.value_row(); ++column) {
    double sum = 0.0;
    double square = 0.0;
    for (std::int64_t t = 0; t < tokens.count; ++t) {
      const double value = static_cast<double>(tokens.values[Size(t * shape.value_row() + column)]);
      sum += value;
      square += value * value;
    }
    const auto count = static_cast<double>(tokens.count);
    spreads[Size(column / shape.value_dim)] += square / count - sum / count * (sum / count);
  }
  for (double& spread : spreads) spread = std::sqrt(spread);
  return spreads;
}

class Drawing {
 public:
  Drawing(const AuditCase& of, std::uint32_t seed)
      : of_(of), shape_(of.tokens.shape), seed_(seed), order_(Size(Count(of))) {
    std::iota(order_.begin(), order_.end(), 0);
    std::shuffle(order_.begin(), order_.end(), std::mt19937(seed));
  }

  static std::int64_t Count(const AuditCase& of) {
    return static_cast<std::int64_t>(of.queries.size()) / of.tokens.shape.query_row();
  }

  // The next queries of the order, each by some last bits other than in any other draw, so that
  // other rows are audited.
  Answers Next(const Engine& engine, const Snapshot& snapshot, std::int64_t count) {
    first_ = next_;
    next_ += count;
    Asked asked = {.accuracy = of_.accuracy};
    std::vector<float> queries;
    for (std::int64_t i = first_; i < next_; ++i) {
      const std::int64_t query = order_[Size(i)];
      const auto row = of_.queries.begin() + query * shape_.query_row();
      queries.insert(queries.end(), row, row + shape_.query_row());
      for (std::int64_t head = 0; head < shape_.query_heads; ++head) {
        float& first = queries[queries.size() - Size((head + 1) * shape_.key_dim)];
        first = std::bit_cast<float>(std::bit_cast<std::uint32_t>(first) + seed_);
      }
      if (!of_.positions.empty()) asked.positions.push_back(of_.positions[Size(query)]);
    }
    return Ask(engine, snapshot, queries.data(), count, asked);
  }
  bool Has(std::int64_t count) const { return next_ + count <= Count(of_); }
  std::int64_t asked() const { return next_; }
  // Query i of those asked last.
  std::int64_t query(std::int64_t i) const { return order_[Size(first_ + i)]; }

 private:
  const AuditCase& of_;
  const LayerShape shape_;
  const std::uint32_t seed_;
  std::vector<std::int64_t> order_;
  std::int64_t first_ = 0;
  std::int64_t next_ = 0;
};

// The 5th percentile, interpolated.
double LowCoverage(std::vector<double> coverages) {
  std::sort(coverages.begin(), coverages.end());
  const double place = 0.05 * static_cast<double>(coverages.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const double above = coverages[std::min(below + 1, coverages.size() - 1)];
  return coverages[below] + (place - static_cast<double>(below)) * (above - coverages[below]);
}

struct Judged {
  double covered = 0.0;
  double rows = 0.0;
};

}  // namespace

std::vector<DrawnHead> Draw(const AuditCase& of, int draws) {
  const LayerShape& shape = of.tokens.shape;
  const std::int64_t queries = Drawing::Count(of);
  const auto exact = exact_test::MakeExact(shape);
  const exact_test::Answers truth = exact_test::Attend(
      *exact, exact_test::At(*exact, of.tokens, of.tokens.count), of.queries.data(), queries);
  const std::vector<double> spreads = Spreads(of.tokens);
  const auto engine = MakeKde(shape, {.mode = KdeConfig::Mode::kIndex, .audits = of.audits});
  const auto head_of = [&](std::int64_t row) {
    return Size(row % shape.query_heads / shape.group_size());
  };
  const auto error_of = [&](const Drawing& drawing, const Answers& answers, std::int64_t row) {
    const std::int64_t dv = shape.value_dim;
    const float* answer = answers.exact.outputs.data() + row * dv;
    const std::int64_t true_row =
        drawing.query(row / shape.query_heads) * shape.query_heads + row % shape.query_heads;
    double square = 0.0;
    for (std::int64_t c = 0; c < dv; ++c) {
      const double off = static_cast<double>(answer[c]) -
                         static_cast<double>(truth.outputs[Size(true_row * dv + c)]);
      square += off * off;
    }
    return std::sqrt(square) / spreads[head_of(row)];
  };
  // [heads]
  std::vector<std::vector<double>> coverages(Size(shape.kv_heads));
  std::vector<std::vector<double>> bars(Size(shape.kv_heads));
  std::vector<std::vector<double>> errors(Size(shape.kv_heads));
  std::vector<Judged> before(Size(shape.kv_heads));
  std::int64_t most_queries = 0;
  for (int draw = 0; draw < draws; ++draw) {
    const Snapshot snapshot = exact_test::At(*engine, of.tokens, of.tokens.count);
    Drawing drawing(of, static_cast<std::uint32_t>(draw));
    std::vector<bool> calibrated(Size(shape.kv_heads));
    std::vector<std::int64_t> answered(Size(shape.kv_heads));  // by the index
    while (drawing.Has(kGroup + kJudged) &&
           std::find(calibrated.begin(), calibrated.end(), false) != calibrated.end()) {
      const bool first = drawing.asked() == 0;
      const Answers answers = drawing.Next(*engine, snapshot, kGroup);
      for (std::int64_t row = 0; row < kGroup * shape.query_heads; ++row) {
        if (answers.paths[Size(row)] == 0) continue;
        const std::size_t head = head_of(row);
        ++answered[head];
        if (answers.calibrated[Size(row)] == 1) calibrated[head] = true;
        if (!first) continue;
        const double bar = static_cast<double>(answers.errors[Size(row)]) + kRounding;
        before[head].rows += 1.0;
        before[head].covered += error_of(drawing, answers, row) <= bar ? 1.0 : 0.0;
      }
    }
    for (std::size_t head = 0; head < calibrated.size(); ++head) {
      EXPECT_TRUE(calibrated[head] || answered[head] < 1500)
          << "head " << head << " is not calibrated after " << answered[head] << " answers";
    }
    most_queries = std::max(most_queries, drawing.asked());
    const Answers answers = drawing.Next(*engine, snapshot, kJudged);
    std::vector<Judged> after(Size(shape.kv_heads));
    for (std::int64_t row = 0; row < kJudged * shape.query_heads; ++row) {
      const std::size_t head = head_of(row);
      if (answers.paths[Size(row)] == 0 || !calibrated[head]) continue;
      const double error = error_of(drawing, answers, row);
      const auto bar = static_cast<double>(answers.errors[Size(row)]);
      EXPECT_EQ(answers.calibrated[Size(row)], 1);
      errors[head].push_back(error);
      bars[head].push_back(bar);
      after[head].rows += 1.0;
      after[head].covered += error <= bar + kRounding ? 1.0 : 0.0;
    }
    for (std::size_t head = 0; head < after.size(); ++head) {
      if (after[head].rows >= 100.0) {
        coverages[head].push_back(after[head].covered / after[head].rows);
      }
    }
  }
  std::vector<DrawnHead> heads;
  for (std::size_t head = 0; head < coverages.size(); ++head) {
    const std::vector<double>& of_draws = coverages[head];
    if (of_draws.empty()) continue;
    heads.push_back({.mean_coverage = std::accumulate(of_draws.begin(), of_draws.end(), 0.0) /
                                      static_cast<double>(of_draws.size()),
                     .low_coverage = LowCoverage(of_draws),
                     .median_bar = Quantile(bars[head], 0.5),
                     .error_95 = Quantile(errors[head], 0.95),
                     .uncalibrated = before[head].covered / std::max(before[head].rows, 1.0),
                     .most_queries = most_queries});
  }
  return heads;
}

}  // namespace attnd::engine::kde_test
