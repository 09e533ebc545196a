// What is drawn, and that estimates from it are unbiased at a fixed sample size.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "engine/kde/certified/residual_sample.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/certified_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::certified_test {
namespace {

struct Weights {
  std::vector<float> keys;
  std::vector<float> blocks;
  ScannedWeights view() const {
    double total = 0;
    for (const float block : blocks) total += static_cast<double>(block);
    return {keys.data(), blocks.data(), std::ssize(blocks), total};
  }
};

Weights RandomWeights(std::int64_t blocks, std::uint32_t seed) {
  Weights weights{RandomValues(blocks * kBlockTokens, seed), std::vector<float>(Size(blocks), 0)};
  for (std::size_t i = 0; i < weights.keys.size(); ++i) {
    float& weight = weights.keys[i];
    weight = i % 3 == 0 ? 0.0F : std::exp(2 * weight);
    if (i / 64 % 4 == 1) weight = 0.0F;  // blocks without any
    weights.blocks[i / 64] += weight;
  }
  return weights;
}

TEST(KdeResidualSampleTest, KeysComeUpInProportionToTheirWeights) {
  const Weights weights = RandomWeights(6, 1);
  const ScannedWeights scanned = weights.view();
  constexpr std::int64_t kPairs = 8;
  constexpr int kRounds = 20000;
  std::vector<double> counts(weights.keys.size(), 0.0);
  std::vector<std::int64_t> draws;
  for (std::uint64_t seed = 0; seed < kRounds; ++seed) {
    DrawPairs(scanned, kPairs, seed, draws);
    ASSERT_EQ(std::ssize(draws), 2 * kPairs);
    EXPECT_TRUE(std::is_sorted(draws.begin(), draws.end()));
    for (const std::int64_t key : draws) counts[Size(key)] += 1;
  }
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected =
        2 * kPairs * kRounds * static_cast<double>(weights.keys[i]) / scanned.total;
    if (weights.keys[i] == 0.0F) {
      EXPECT_EQ(counts[i], 0.0) << "a key without weight";
    }
    EXPECT_NEAR(counts[i], expected, 5 * std::sqrt(expected) + 1e-9) << "key " << i;
  }
}

TEST(KdeResidualSampleTest, EveryStratumHasItsTwoDraws) {
  Weights weights{std::vector<float>(640, 1.0F), std::vector<float>(10, 64.0F)};
  std::vector<std::int64_t> draws;
  DrawPairs(weights.view(), 10, 5, draws);
  for (std::int64_t i = 0; i < 20; ++i) EXPECT_EQ(draws[Size(i)] / 64, i / 2);
}

TEST(KdeResidualSampleTest, OneKeyWithWeightIsDrawnEveryTime) {
  Weights weights{std::vector<float>(192, 0.0F), {0.0F, 1e-30F, 0.0F}};
  weights.keys[100] = 1e-30F;
  std::vector<std::int64_t> draws;
  DrawPairs(weights.view(), 4, 5, draws);
  EXPECT_EQ(draws, std::vector<std::int64_t>(8, 100));
}

TEST(KdeResidualSampleTest, SeedsDependOnEverythingThatDesignNames) {
  const std::vector<float> row = RandomValues(16, 2);
  std::set<std::uint64_t> seeds;
  const auto add = [&](std::uint64_t seed, std::int64_t layer, std::int64_t head,
                       std::int64_t position, const std::vector<float>& query) {
    seeds.insert(RowSeed(seed, layer, head, position, query.data(), std::ssize(query)));
  };
  add(1, 2, 3, 4, row);
  add(1, 2, 3, 4, row);
  EXPECT_EQ(seeds.size(), 1U);
  add(2, 2, 3, 4, row);
  add(1, 3, 3, 4, row);
  add(1, 2, 4, 4, row);
  add(1, 2, 3, 5, row);
  add(1, 3, 2, 4, row);
  std::vector<float> other = row;
  other[15] = std::nextafter(other[15], 10.0F);
  add(1, 2, 3, 4, other);
  std::swap(other[0], other[1]);
  add(1, 2, 3, 4, other);
  EXPECT_EQ(seeds.size(), 8U);
}

// Numerator and denominator, whose means over many seeds must be the truth within their own
// standard errors: 12 draws of 1,000 keys, with codes that one component makes coarse which the
// query does not see, so that there is something to estimate.
class KdeUnbiasedTest : public ::testing::TestWithParam<Controls> {};

INSTANTIATE_TEST_SUITE_P(Controls, KdeUnbiasedTest,
                         ::testing::Values(Controls::kNone, Controls::kMeans, Controls::kCodes));

TEST_P(KdeUnbiasedTest, AtAFixedSampleSize) {
  Tokens tokens = RandomTokens(1000, 24, 3, 11, 0.5F);
  for (std::size_t i = 0; i < tokens.keys.size(); i += 24) tokens.keys[i] *= 60;
  std::vector<float> query(24, 0.15F);
  query[0] = 0;
  const CodedContext context(tokens, GetParam());
  const CertifiedOptions options = {
      .heavy_keys = 20, .most_heavy_keys = 20, .heavy_margin = 0, .pairs = 6, .max_eta = 10};
  const oracle::Answers truth = Truth(tokens, query);
  constexpr int kSeeds = 4000;
  double d_sum = 0;
  double d_square = 0;
  double se_square = 0;
  double error_square = 0;
  std::vector<double> n_sum(3, 0.0);
  std::vector<double> n_square(3, 0.0);
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Answer answer = Attend(context, options, query.data(), seed);
    ASSERT_EQ(answer.estimates.flag, RowFlag::kOk);
    ASSERT_GT(answer.estimates.moments.pairs, 0);
    // Relative to the truth.
    const double d = std::exp(answer.estimates.log_normalizer - truth.log_normalizers[0]);
    d_sum += d;
    d_square += d * d;
    for (std::size_t c = 0; c < 3; ++c) {
      const double n = d * static_cast<double>(answer.output[c]);
      n_sum[c] += n;
      n_square[c] += n * n;
    }
    error_square += std::pow(ErrorOfRow(answer, truth, 0), 2);
    se_square += std::pow(answer.estimates.standard_error, 2);
  }
  const auto error_of_mean = [](double sum, double square) {
    const double mean = sum / kSeeds;
    return std::sqrt((square / kSeeds - mean * mean) / kSeeds);
  };
  EXPECT_GT(d_square / kSeeds - std::pow(d_sum / kSeeds, 2), 1e-5) << "nothing to estimate";
  EXPECT_NEAR(d_sum / kSeeds, 1.0, 4 * error_of_mean(d_sum, d_square));
  for (std::size_t c = 0; c < 3; ++c) {
    EXPECT_NEAR(n_sum[c] / kSeeds, truth.outputs[c], 4 * error_of_mean(n_sum[c], n_square[c]));
  }
  // The ratio's squared error is what the standard error says, to first order.
  EXPECT_NEAR(se_square / error_square, 1.0, 0.1);
}

}  // namespace
}  // namespace attnd::engine::certified_test
