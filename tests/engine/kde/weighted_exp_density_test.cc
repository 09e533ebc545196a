// WExpKDE against its definition: identity, weights and norms of any size, the lower bound that is
// learned, and errors that follow epsilon.
#include "engine/kde/paper/weighted_exp_density.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/kde/paper_harness.h"

namespace attnd::engine::kde_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Answer {
  std::vector<double> logs;
  WeightedExpCosts costs;
};

Answer Estimate(Rows data, const std::vector<double>& log_weights, Rows queries,
                const WeightedExpConfig& config) {
  Answer answer;
  answer.logs.assign(static_cast<std::size_t>(queries.count), 0.0);
  auto made = WeightedExpDensity::Create(data, log_weights.empty() ? nullptr : log_weights.data(),
                                         queries, config, answer.logs.data());
  if (!made.ok()) {
    ADD_FAILURE() << made.status();
    return answer;
  }
  Scratch scratch;
  while (!(*made)->Step(scratch)) {
  }
  answer.costs = (*made)->costs();
  return answer;
}

// |alpha / truth - 1| of each query.
std::vector<double> Errors(Rows data, const std::vector<double>& log_weights, Rows queries,
                           const Answer& answer) {
  std::vector<double> errors;
  for (std::int64_t q = 0; q < queries.count; ++q) {
    const double truth =
        RefLogWeightedExp(data, log_weights.empty() ? nullptr : log_weights.data(), queries.row(q));
    errors.push_back(std::abs(std::exp(answer.logs[static_cast<std::size_t>(q)] - truth) - 1));
  }
  return errors;
}

double RootMeanSquare(const std::vector<double>& errors) {
  double squares = 0;
  for (const double error : errors) squares += error * error;
  return std::sqrt(squares / static_cast<double>(errors.size()));
}

std::vector<double> SpreadWeights(std::int64_t count) {
  std::vector<double> log_weights;
  for (std::int64_t i = 0; i < count; ++i) {
    log_weights.push_back(std::sin(static_cast<double>(i)) * 2);
  }
  return log_weights;
}

TEST(KdeWeightedExp, ExactSumsEqualTheDefinition) {
  for (const auto& [name, rows] : AdversarialRows()) {
    const std::vector<double> log_weights = SpreadWeights(rows.count);
    const Answer answer = Estimate(rows.rows(), log_weights, rows.rows(), {DensityMethod::kExact});
    const std::vector<double> errors = Errors(rows.rows(), log_weights, rows.rows(), answer);
    for (const double error : errors) EXPECT_LT(error, 2e-3) << name;
  }
}

// Sampling to the end of its limits still gives an answer everywhere, and a right one.
TEST(KdeWeightedExp, EveryMethodTakesAdversarialData) {
  for (const DensityMethod method : {DensityMethod::kUniform, DensityMethod::kHashing}) {
    for (const auto& [name, rows] : AdversarialRows()) {
      Rows data = rows.rows();
      // The sets' rows around the outlier.
      if (data.count > 90) data = DenseRows(data.row(60), 24, data.dim);
      Rows queries = data;
      queries.count = std::min<std::int64_t>(queries.count, 3);
      const std::vector<double> log_weights = SpreadWeights(data.count);
      const Answer answer = Estimate(data, log_weights, queries, {method, 0.5, 3, true});
      for (const double error : Errors(data, log_weights, queries, answer)) {
        EXPECT_LT(error, 1.0) << name << ", method " << static_cast<int>(method);
      }
    }
  }
}

TEST(KdeWeightedExp, WeightsOfAnySizeDoNotOverflow) {
  const OwnedRows rows = RandomRows(100, 4, 71, 1.0F);
  std::vector<double> log_weights = SpreadWeights(rows.count);
  for (const double shift : {-5000.0, 5000.0}) {
    std::vector<double> shifted = log_weights;
    for (double& x : shifted) x += shift;
    const Answer answer = Estimate(rows.rows(), shifted, rows.rows(), {DensityMethod::kExact});
    const Answer hashed =
        Estimate(rows.rows(), shifted, rows.rows(), {DensityMethod::kHashing, 0.5, 3, true});
    for (std::int64_t q = 0; q < rows.count; ++q) {
      const double truth = RefLogWeightedExp(rows.rows(), shifted.data(), rows.rows().row(q));
      EXPECT_NEAR(answer.logs[static_cast<std::size_t>(q)], truth, 1e-4);
      EXPECT_NEAR(hashed.logs[static_cast<std::size_t>(q)], truth, 0.7);
    }
  }
}

TEST(KdeWeightedExp, PointsWithoutWeightCountForNothing) {
  const OwnedRows rows = RandomRows(100, 4, 72, 1.0F);
  std::vector<double> log_weights(100, -kInfinity);
  const Answer none = Estimate(rows.rows(), log_weights, rows.rows(), {DensityMethod::kExact});
  for (const double x : none.logs) EXPECT_EQ(x, -kInfinity);
  log_weights[17] = 3;
  const Answer one = Estimate(rows.rows(), log_weights, rows.rows(), {DensityMethod::kExact});
  for (std::int64_t q = 0; q < rows.count; ++q) {
    EXPECT_NEAR(one.logs[static_cast<std::size_t>(q)],
                3 + DotF64(rows.rows().row(17), rows.rows().row(q), 4), 1e-5);
  }
}

// Densities of this set lie far below 1 / n: without a bound that falls, hashing would answer 0.
TEST(KdeWeightedExp, LowerBoundIsLearned) {
  const OwnedRows rows = RandomRows(100, 3, 73, 0.9F);
  const OwnedRows queries = RandomRows(20, 3, 74, 0.9F);
  const Answer answer =
      Estimate(rows.rows(), {}, queries.rows(), {DensityMethod::kHashing, 0.5, 5, true});
  EXPECT_GE(answer.costs.bounds, 3);
  EXPECT_EQ(answer.costs.exact_queries, 0);
  EXPECT_LT(RootMeanSquare(Errors(rows.rows(), {}, queries.rows(), answer)), 0.5);
}

TEST(KdeWeightedExp, ErrorsFollowEpsilon) {
  const OwnedRows rows = RandomRows(100, 3, 75, 0.6F);
  const OwnedRows queries = RandomRows(40, 3, 76, 0.6F);
  for (const DensityMethod method : {DensityMethod::kUniform, DensityMethod::kHashing}) {
    std::vector<double> sizes;
    for (const double epsilon : {0.5, 0.25, 0.125}) {
      std::vector<double> errors;
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        const Answer answer =
            Estimate(rows.rows(), {}, queries.rows(), {method, epsilon, seed, true});
        EXPECT_LE(answer.costs.exact_queries, 1);
        const std::vector<double> more = Errors(rows.rows(), {}, queries.rows(), answer);
        errors.insert(errors.end(), more.begin(), more.end());
      }
      const auto within = std::count_if(errors.begin(), errors.end(),
                                        [&](double error) { return error <= epsilon; });
      EXPECT_GE(within, 240 * 95 / 100)
          << "epsilon " << epsilon << ", method " << static_cast<int>(method);
      // A third of epsilon is what samples are counted for.
      EXPECT_LT(RootMeanSquare(errors), 0.5 * epsilon);
      sizes.push_back(RootMeanSquare(errors));
    }
    // The fewest samples that say something of their error are more than uniform sampling needs
    // here.
    if (method == DensityMethod::kHashing) {
      EXPECT_LT(sizes.back(), sizes.front() * 0.6);
    }
  }
}

TEST(KdeWeightedExp, TakesExactSumsWhereTheyCostLess) {
  const OwnedRows rows = RandomRows(300, 3, 73, 1.3F);
  const Answer answer = Estimate(rows.rows(), {}, rows.rows(), {DensityMethod::kHashing, 0.1, 5});
  EXPECT_EQ(answer.costs.exact_queries, rows.count);
  EXPECT_EQ(answer.costs.evaluations, rows.count * rows.count);
}

TEST(KdeWeightedExp, NamesWhatItRefuses) {
  const OwnedRows rows = RandomRows(10, 2, 77, 1.0F);
  const OwnedRows wide = RandomRows(10, 3, 78, 1.0F);
  double answer = 0;
  const auto message = [&](Rows data, Rows queries, double epsilon) {
    return std::string(WeightedExpDensity::Create(data, nullptr, queries,
                                                  {DensityMethod::kExact, epsilon}, &answer)
                           .status()
                           .message());
  };
  EXPECT_EQ(message({}, rows.rows(), 0.1), "data are 0 rows of 0 numbers; each must be at least 1");
  EXPECT_EQ(message(rows.rows(), wide.rows(), 0.1), "queries have 3 numbers; the data have 2");
  EXPECT_EQ(message(rows.rows(), rows.rows(), 2), "epsilon is 2; it must be above 0 and at most 1");
}

}  // namespace
}  // namespace attnd::engine::kde_test
