// What is not seen through answers (kde_bits_test.cc holds those to a scalar reference):
// predictions against their formulas, bounds, and numbers that are not finite.
#include "engine/simd/leaf_selection.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// 70 leaves in 128 columns.
struct Leaves {
  std::vector<float> log_counts = std::vector<float>(128, -kInfinity);
  std::vector<float> noises = std::vector<float>(128, 0.0F);
  std::vector<float> variances = std::vector<float>(128, 0.0F);
  std::vector<float> radii = std::vector<float>(128, 0.0F);
  std::vector<float> ratios = std::vector<float>(128, 0.0F);
  std::vector<float> slopes = std::vector<float>(128, 0.0F);
  std::vector<float> log_masses = std::vector<float>(128, -kInfinity);

  Leaves() {
    for (std::size_t i = 0; i < 70; ++i) {
      const auto x = static_cast<float>(i);
      log_counts[i] = std::log(64.0F);
      noises[i] = 1.0F / 64.0F;
      variances[i] = 0.01F * x;
      radii[i] = 0.1F * x;
      ratios[i] = 1.1F;
      slopes[i] = 0.5F;
      log_masses[i] = -0.2F * x;
    }
  }
  LeafStats stats() const {
    return {128,          log_counts.data(), noises.data(), variances.data(),
            radii.data(), ratios.data(),     slopes.data()};
  }
};

TEST(LeafSelectionTest, PredictsWhatTheFormulasSay) {
  const Leaves leaves;
  const LeafQuery query = {.square = 2.0F, .length = 1.5F};
  std::vector<float> errors(128);
  std::vector<float> masses(128);
  PredictLeaves(leaves.stats(), query, leaves.log_masses.data(), errors.data(), masses.data());
  for (std::size_t i = 0; i < 70; ++i) {
    const double s = 2.0 * static_cast<double>(leaves.variances[i]);
    const double mass = std::exp(static_cast<double>(leaves.log_masses[i]) + 0.5 * s);
    EXPECT_NEAR(static_cast<double>(masses[i]), mass, 1e-5 * mass) << i;
    const double square = mass * mass * std::expm1(2.0 * s) / 64.0;
    EXPECT_NEAR(static_cast<double>(errors[i]), square, 1e-4 * square + 1e-9) << i;
  }
}

TEST(LeafSelectionTest, WeighsWhatItDoesNotSelect) {
  Leaves leaves;
  const std::vector<float> log_masses = leaves.log_masses;
  const LeafQuery query = {
      .square = 2.0F, .length = 1.5F, .threshold = 0.02F, .ratio = 0.9F, .bounds = true};
  std::vector<float> errors(128);
  std::vector<float> masses(128);
  PredictLeaves(leaves.stats(), query, log_masses.data(), errors.data(), masses.data());
  std::vector<std::uint64_t> selected(2);
  const LeafTotals totals =
      SelectLeaves(leaves.stats(), query, 65, leaves.log_masses.data(), selected.data());
  double mass = 0.0;
  double lower = 0.0;
  double upper = 0.0;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < 128; ++i) {
    const bool read = ((selected[i / 64] >> (i % 64)) & 1U) != 0;
    EXPECT_EQ(read, i == 65 || errors[i] > 0.02F * 0.02F) << i;
    count += read ? 1 : 0;
    if (read || i >= 70) {
      EXPECT_EQ(leaves.log_masses[i], 0.0F) << i;
      continue;
    }
    EXPECT_NEAR(leaves.log_masses[i], masses[i] * 1.1F * 0.9F, 1e-6F) << i;
    mass += static_cast<double>(leaves.log_masses[i]);
    const auto log_mass = static_cast<double>(log_masses[i]);
    lower += std::exp(log_mass);
    upper += std::exp(log_mass + 1.5 * static_cast<double>(leaves.radii[i]));
  }
  EXPECT_GT(count, 3);
  EXPECT_LT(count, 60);
  EXPECT_NEAR(static_cast<double>(totals.mass), mass, 1e-5 * mass);
  EXPECT_NEAR(static_cast<double>(totals.slope), 0.5 * mass, 1e-5 * mass);
  EXPECT_NEAR(static_cast<double>(totals.lower), lower, 1e-5 * lower);
  EXPECT_NEAR(static_cast<double>(totals.upper), upper, 1e-4 * upper);
}

// No model: the bound decides. Not a number: read.
TEST(LeafSelectionTest, SelectsWhatItCannotPredict) {
  Leaves leaves;
  leaves.variances[3] = kInfinity;  // bounded by its radius
  leaves.variances[40] = kInfinity;
  leaves.radii[40] = 0.0F;
  leaves.log_masses[40] = -60.0F;  // next to nothing
  leaves.log_masses[50] = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::uint64_t> selected(2);
  SelectLeaves(leaves.stats(), {.square = 1e-9F, .length = 1.0F, .threshold = 0.5F}, -1,
               leaves.log_masses.data(), selected.data());
  EXPECT_EQ(selected[0], (std::uint64_t{1} << 3) | (std::uint64_t{1} << 50));
  EXPECT_EQ(selected[1], 0U);
}

TEST(LeafSelectionTest, LogMassesFindWhatIsNotFinite) {
  Leaves leaves;
  std::vector<float> scores(128, 1.0F);
  EXPECT_EQ(LogMasses(leaves.stats(), scores.data()), 1.0F + std::log(64.0F));
  EXPECT_EQ(scores[100], -kInfinity);
  for (const float wrong : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> bad(128, 1.0F);
    bad[33] = wrong;
    EXPECT_TRUE(std::isnan(LogMasses(leaves.stats(), bad.data())));
  }
}

}  // namespace
}  // namespace attnd::engine
