// Gaussian kernel densities: the exact method against the definition, the others against what a
// sample is expected to be, and the promise of a query.
#include "engine/kde/paper/density.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/kde/paper/hash_family.h"
#include "gtest/gtest.h"
#include "tests/engine/kde/paper_harness.h"

namespace attnd::engine::kde_test {
namespace {

constexpr DensityMethod kSampling[] = {DensityMethod::kUniform, DensityMethod::kHashing};

std::unique_ptr<const Density> Make(const DensityPoints& points, const DensityConfig& config) {
  auto made = PreprocessDensity(points, config);
  if (!made.ok()) {
    ADD_FAILURE() << made.status();
    return MakeExactDensity(points);
  }
  return *std::move(made);
}

std::vector<double> Query(const Density& density, Rows queries) {
  std::vector<double> logs(static_cast<std::size_t>(queries.count));
  Scratch scratch;
  const auto run = density.Query(queries, logs.data());
  RunToEnd(*run, scratch);
  return logs;
}

// Points with heights in a plane, so that densities are between 1e-3 and 1e-1.
struct PlanePoints {
  OwnedRows rows = RandomRows(400, 2, 21, 2.0F);
  std::vector<double> heights_squared;
  OwnedRows queries = RandomRows(12, 2, 22, 2.0F);

  PlanePoints() {
    for (std::int64_t i = 0; i < rows.count; ++i) {
      heights_squared.push_back(static_cast<double>(i % 5));
    }
  }
  DensityPoints points() const { return {rows.rows(), heights_squared.data()}; }
};

TEST(KdeDensity, ExactEqualsTheDefinition) {
  for (const auto& [name, rows] : AdversarialRows()) {
    std::vector<double> heights(static_cast<std::size_t>(rows.count));
    for (std::size_t i = 0; i < heights.size(); ++i) heights[i] = static_cast<double>(i % 7);
    const DensityPoints points = {rows.rows(), heights.data()};
    const OwnedRows queries = RandomRows(200, rows.dim, 31, 2.0F);
    for (const OwnedRows& asked : {queries, rows}) {
      const std::vector<double> logs = Query(*MakeExactDensity(points), asked.rows());
      for (std::int64_t q = 0; q < asked.count; ++q) {
        const double truth = RefLogDensity(points, asked.rows().row(q));
        EXPECT_NEAR(logs[static_cast<std::size_t>(q)], truth, 1e-3) << name << ", query " << q;
      }
    }
  }
}

TEST(KdeDensity, ExactKeepsDigitsOfOrdinaryData) {
  const OwnedRows rows = RandomRows(1000, 20, 41, 0.7F);
  const DensityPoints points = {rows.rows()};
  const OwnedRows queries = RandomRows(50, 20, 42, 0.7F);
  const std::vector<double> logs = Query(*MakeExactDensity(points), queries.rows());
  for (std::int64_t q = 0; q < queries.count; ++q) {
    EXPECT_NEAR(logs[static_cast<std::size_t>(q)], RefLogDensity(points, queries.rows().row(q)),
                3e-6);
  }
}

// Over independent seeds, the mean of estimates with a fixed number of samples is the density.
TEST(KdeDensity, EstimatesOfAFixedSizeAreUnbiased) {
  constexpr int kSeeds = 400;
  constexpr std::int64_t kSamples = 40;
  const PlanePoints plane;
  const std::int64_t queries = plane.queries.count;
  for (const DensityMethod method : kSampling) {
    std::vector<std::vector<double>> ratios(static_cast<std::size_t>(queries));
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const auto density = Make(plane.points(), {method, 0.5, std::log(1e-3), seed});
      std::vector<double> logs(static_cast<std::size_t>(queries));
      Scratch scratch;
      RunToEnd(*density->Estimate(plane.queries.rows(), kSamples, logs.data()), scratch);
      for (std::int64_t q = 0; q < queries; ++q) {
        const double truth = RefLogDensity(plane.points(), plane.queries.rows().row(q));
        ratios[static_cast<std::size_t>(q)].push_back(
            std::exp(logs[static_cast<std::size_t>(q)] - truth));
      }
    }
    for (const std::vector<double>& ratio : ratios) {
      const Moments moments = MomentsOf(ratio);
      // 24 looks at 4.5 standard errors: wrong once in 6,000; a bias of a fifth is seen.
      EXPECT_NEAR(moments.mean, 1, 4.5 * moments.error) << static_cast<int>(method);
      EXPECT_LT(moments.error, 0.05) << static_cast<int>(method);
    }
  }
}

TEST(KdeDensity, HashingCollidesAsOftenAsItsFormulaSays) {
  constexpr std::int64_t kTables = 40000;
  for (const double distance : {0.3, 1.5, 3.0, 4.5}) {
    const std::vector<float> point = {static_cast<float>(distance), 0.0F};
    const DensityPoints points = {DenseRows(point.data(), 1, 2)};
    const std::vector<float> query = {0.0F, 0.0F};
    const double log_mu = std::log(1e-4);
    const auto density = MakeHashingDensity(points, {DensityMethod::kHashing, 1, log_mu, 5}, 1);
    double log_estimate = 0;
    Scratch scratch;
    const auto run = density->Estimate(DenseRows(query.data(), 1, 2), kTables, &log_estimate);
    RunToEnd(*run, scratch);
    // One point: a table either finds it, which is one evaluation, or not.
    const double found = static_cast<double>(run->evaluations()) / kTables;
    const double expected = std::exp(HashFamily(log_mu).LogCollision(distance));
    EXPECT_NEAR(found, expected, 4.5 * std::sqrt(expected / kTables)) << distance;
  }
}

// What hashing is for: near points are found more often than their number suggests.
TEST(KdeDensity, HashingHasLessVarianceThanUniformSampling) {
  constexpr std::uint64_t kSeeds = 40;
  OwnedRows rows = RandomRows(2000, 6, 51, 3.0F);
  for (std::size_t i = 0; i < 12; ++i) rows.numbers[i] *= 0.05F;  // two near the query
  const DensityPoints points = {rows.rows()};
  const std::vector<float> query(6, 0.0F);
  double errors[2] = {};
  for (std::size_t m = 0; m < 2; ++m) {
    std::vector<double> ratios;
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      const auto density = Make(points, {kSampling[m], 1, std::log(5e-4), seed});
      double log_estimate = 0;
      Scratch scratch;
      RunToEnd(*density->Estimate(DenseRows(query.data(), 1, 6), 200, &log_estimate), scratch);
      ratios.push_back(std::exp(log_estimate - RefLogDensity(points, query.data())));
    }
    errors[m] = MomentsOf(ratios).error;
  }
  EXPECT_LT(errors[1], errors[0] / 4);
}

TEST(KdeDensity, QueriesKeepTheirPromise) {
  const PlanePoints plane;
  const OwnedRows queries = RandomRows(150, 2, 23, 3.0F);
  for (const DensityMethod method : kSampling) {
    for (const double epsilon : {0.4, 0.15}) {
      const double log_bound = std::log(5e-3);
      const auto density = Make(plane.points(), {method, epsilon, log_bound, 9});
      const std::vector<double> logs = Query(*density, queries.rows());
      int above = 0;
      int wrong = 0;
      int below = 0;
      for (std::int64_t q = 0; q < queries.count; ++q) {
        const double log_mu = RefLogDensity(plane.points(), queries.rows().row(q));
        const double answer = logs[static_cast<std::size_t>(q)];
        if (log_mu >= log_bound + std::log(1 + epsilon)) {
          ++above;
          wrong += std::abs(std::exp(answer - log_mu) - 1) <= epsilon ? 0 : 1;
        } else if (log_mu < log_bound + std::log(1 - epsilon)) {
          ++below;
          wrong += answer == -std::numeric_limits<double>::infinity() ? 0 : 1;
        }
      }
      EXPECT_GE(above, 40);
      EXPECT_GE(below, 20);
      EXPECT_LE(wrong, (above + below) / 20) << static_cast<int>(method) << ", epsilon " << epsilon;
    }
  }
}

TEST(KdeDensity, AnswersDoNotDependOnTheBatch) {
  const PlanePoints plane;
  for (const DensityMethod method : kSampling) {
    const auto density = Make(plane.points(), {method, 0.3, std::log(1e-3), 13});
    const std::vector<double> together = Query(*density, plane.queries.rows());
    for (std::int64_t q = 0; q < plane.queries.count; ++q) {
      const Rows one = DenseRows(plane.queries.rows().row(q), 1, 2);
      EXPECT_EQ(Query(*density, one)[0], together[static_cast<std::size_t>(q)]);
    }
  }
}

TEST(KdeDensity, NamesWhatItRefuses) {
  const OwnedRows rows = RandomRows(10, 2, 61, 1.0F);
  const DensityPoints points = {rows.rows()};
  const auto status = [&](const DensityPoints& of, const DensityConfig& config) {
    return PreprocessDensity(of, config).status();
  };
  EXPECT_EQ(status({}, {}).message(), "points are 0 rows of 0 numbers; each must be at least 1");
  EXPECT_EQ(status(points, {DensityMethod::kExact, 0}).message(),
            "epsilon is 0; it must be above 0 and at most 1");
  EXPECT_EQ(status(points, {DensityMethod::kExact, 0.1, 1}).message(),
            "log_lower_bound is 1; it must be finite and at most 0");
  const absl::Status many = status(points, {DensityMethod::kUniform, 0.2, -12});
  EXPECT_EQ(many.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(status(points, {DensityMethod::kHashing, 0.2, -12}).ok());
  EXPECT_EQ(status(points, {DensityMethod::kHashing, 0.2, -1e300}).code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace attnd::engine::kde_test
