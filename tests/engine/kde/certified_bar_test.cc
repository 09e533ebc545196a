// Moments, bars and intervals by themselves.
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "engine/kde/certified/error_bar.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"

namespace attnd::engine {
namespace {

TEST(KdeErrorBarTest, StudentQuantiles) {
  EXPECT_NEAR(StudentQuantile(1), 12.706, 0.001);
  EXPECT_NEAR(StudentQuantile(2), 4.303, 0.001);
  EXPECT_NEAR(StudentQuantile(3), 3.182, 0.03);
  EXPECT_NEAR(StudentQuantile(5), 2.571, 0.005);
  EXPECT_NEAR(StudentQuantile(10), 2.228, 0.001);
  EXPECT_NEAR(StudentQuantile(30), 2.042, 0.001);
  EXPECT_NEAR(StudentQuantile(1000), 1.962, 0.001);
}

ErrorMoments Partition(double reference, double scale) {
  return {.reference = reference,
          .exact = 3 * scale,
          .residual = 2 * scale,
          .residual_low = 1.5 * scale,
          .residual_high = 2.5 * scale,
          .range = 0.02 * scale,
          .pairs = 8,
          .ratio_square = 1e-4 * scale * scale,
          .value_square = 5e-3 * scale * scale,
          .value_ratio = {1e-4 * scale * scale, -2e-4 * scale * scale}};
}

void ExpectSame(const ErrorMoments& a, const ErrorMoments& b) {
  const double f = std::exp(b.reference - a.reference);
  EXPECT_NEAR(b.exact * f / a.exact, 1, 1e-12);
  EXPECT_NEAR(b.residual * f / a.residual, 1, 1e-12);
  EXPECT_NEAR(b.residual_low * f / a.residual_low, 1, 1e-12);
  EXPECT_NEAR(b.residual_high * f / a.residual_high, 1, 1e-12);
  EXPECT_NEAR(b.range * f / a.range, 1, 1e-12);
  EXPECT_EQ(a.pairs, b.pairs);
  EXPECT_NEAR(b.ratio_square * f * f / a.ratio_square, 1, 1e-12);
  EXPECT_NEAR(b.value_square * f * f / a.value_square, 1, 1e-12);
  ASSERT_EQ(a.value_ratio.size(), b.value_ratio.size());
  for (std::size_t c = 0; c < a.value_ratio.size(); ++c) {
    EXPECT_NEAR(b.value_ratio[c] * f * f / a.value_ratio[c], 1, 1e-12);
  }
}

TEST(KdeErrorBarTest, MergingDoesNotDependOnOrderOrReference) {
  ErrorMoments ab = Partition(5.0, 1.0);
  MergeMoments(Partition(-2.0, 40.0), ab);
  ErrorMoments ba = Partition(-2.0, 40.0);
  MergeMoments(Partition(5.0, 1.0), ba);
  ExpectSame(ab, ba);
  ErrorMoments moved = Partition(0.0, std::exp(5.0));
  MergeMoments(Partition(-2.0, 40.0), moved);
  ExpectSame(ab, moved);
}

TEST(KdeErrorBarTest, EmptyPartitionsLeaveTheOtherAsItIs) {
  const ErrorMoments full = Partition(700.0, 1.0);
  ErrorMoments into = full;
  MergeMoments({}, into);
  ExpectSame(full, into);
  ErrorMoments empty;
  MergeMoments(full, empty);
  ExpectSame(full, empty);
  ErrorMoments nothing;
  MergeMoments({}, nothing);
  EXPECT_EQ(nothing.total(), 0.0);
}

TEST(KdeErrorBarTest, WhatWasEvaluatedHasNoError) {
  ErrorMoments moments{.reference = 1.0, .exact = 2.0};
  const float output[] = {1.0F, 2.0F};
  EXPECT_EQ(ErrorBar(moments, output, 2), 0.0);
  const LogInterval interval = LogNormalizerInterval(moments);
  EXPECT_EQ(interval.low, 1.0 + std::log(2.0));
  EXPECT_EQ(interval.high, interval.low);
}

// The interval may not be wider than what is certain, nor than what the sample says.
TEST(KdeErrorBarTest, IntervalsAreTheNarrowerOfTwo) {
  ErrorMoments moments = Partition(0.0, 1.0);
  const LogInterval sampled = LogNormalizerInterval(moments);
  EXPECT_LT(sampled.high, std::log(5.5) - 0.01);
  EXPECT_GT(sampled.low, std::log(4.5) + 0.01);
  moments.range = 10;
  const LogInterval certain = LogNormalizerInterval(moments);
  EXPECT_NEAR(certain.high, std::log(5.5), 1e-12);
  EXPECT_NEAR(certain.low, std::log(4.5), 1e-12);
}

// Draws of the worst kind that the bound allows for, rare and at the end of the range, in strata
// of unequal variance.
TEST(KdeErrorBarTest, TheIntervalCoversRareLargeDraws) {
  for (const double rare : {0.5, 0.05, 0.01}) {
    std::mt19937_64 generator(1);
    std::uniform_real_distribution<double> uniform(0, 1);
    int missed = 0;
    constexpr int kRounds = 2000;
    constexpr std::int64_t kPairs = 32;
    for (int round = 0; round < kRounds; ++round) {
      // x is 0.5 or 1.5; S = 1.
      const double unit = 1.0 / (2 * kPairs);
      ErrorMoments moments{.residual_low = 0, .residual_high = 100, .range = unit, .pairs = kPairs};
      double truth = 0;
      for (std::int64_t h = 0; h < kPairs; ++h) {
        const double p = h % 2 == 0 ? rare : rare / 4;
        const double x = uniform(generator) < p ? 1.5 : 0.5;
        const double y = uniform(generator) < p ? 1.5 : 0.5;
        moments.residual += unit * (x + y);
        moments.ratio_square += unit * unit * (x - y) * (x - y);
        truth += 2 * unit * (0.5 + p);
      }
      const LogInterval interval = LogNormalizerInterval(moments);
      const double log_truth = std::log(truth);
      if (log_truth < interval.low || log_truth > interval.high) ++missed;
    }
    EXPECT_LE(missed, kRounds * kMissRate) << "rare " << rare;
  }
}

}  // namespace
}  // namespace attnd::engine
