#include "engine/simd/softmax.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::uint64_t kAll = ~std::uint64_t{0};

// Running rows and the blocks that went into them.
struct Rows {
  explicit Rows(std::int64_t count)
      : max(static_cast<std::size_t>(count), -kInf),
        sum(static_cast<std::size_t>(count), 0.0F),
        corr(static_cast<std::size_t>(count), -7.0F) {}

  void Step(std::vector<float>& scores, const std::vector<std::uint64_t>& valid) {
    OnlineSoftmaxBlock(scores.data(), static_cast<std::int64_t>(max.size()), valid.data(),
                       valid.size() == 1 ? 0 : 1, max.data(), sum.data(), corr.data());
  }

  std::vector<float> max, sum, corr;
};

bool Valid(std::uint64_t mask, std::size_t j) { return ((mask >> j) & 1U) != 0; }

TEST(OnlineSoftmax, MatchesF64OverSeveralBlocks) {
  for (const std::int64_t rows : {1, 2, 15, 16, 17, 64, 192}) {
    Rows state(rows);
    std::vector<std::vector<double>> seen(static_cast<std::size_t>(rows));
    for (std::uint32_t block = 0; block < 5; ++block) {
      std::vector<float> scores = RandomValues(rows * kSoftmaxBlock, block, 4.0F);
      const std::vector<float> before = scores;
      const Rows old = state;
      std::vector<std::uint64_t> valid(static_cast<std::size_t>(rows), kAll);
      for (std::size_t r = 0; r < valid.size(); ++r) {
        // Full masks, causal ones, scattered ones and none.
        if (r % 4 == 1) valid[r] = (std::uint64_t{1} << (r % 63 + 1)) - 1;
        if (r % 4 == 2) valid[r] = 0x9E3779B97F4A7C15ULL * (r + block);
        if (r % 4 == 3 && block % 2 == 0) valid[r] = 0;
      }
      state.Step(scores, valid);
      for (std::size_t r = 0; r < valid.size(); ++r) {
        float max = old.max[r];
        for (std::size_t j = 0; j < 64; ++j) {
          if (!Valid(valid[r], j)) continue;
          max = std::max(max, before[r * kSoftmaxBlock + j]);
          seen[r].push_back(static_cast<double>(before[r * kSoftmaxBlock + j]));
        }
        ASSERT_EQ(state.max[r], max);
        // The difference is rounded to f32 before exp, as it is for the weights.
        const double corr =
            old.max[r] == max ? 1.0 : std::exp(static_cast<double>(old.max[r] - max));
        ASSERT_NEAR(static_cast<double>(state.corr[r]), corr, 2.5e-7 * corr);
        double sum = 0.0;
        for (const double score : seen[r]) sum += std::exp(score - static_cast<double>(max));
        ASSERT_NEAR(static_cast<double>(state.sum[r]), sum, 2e-6 * sum);
        for (std::size_t j = 0; j < kSoftmaxBlock; ++j) {
          const float p = scores[r * kSoftmaxBlock + j];
          if (!Valid(valid[r], j)) {
            ASSERT_EQ(p, 0.0F);
          } else {
            const double x = static_cast<double>(before[r * kSoftmaxBlock + j] - max);
            ASSERT_NEAR(static_cast<double>(p), std::exp(x), 2.5e-7 * std::exp(x));
          }
        }
      }
    }
  }
}

TEST(OnlineSoftmax, RowsDoNotDependOnTheirCompany) {
  constexpr std::int64_t kRows = 50;
  std::vector<float> together = RandomValues(kRows * kSoftmaxBlock, 7, 3.0F);
  std::vector<float> alone = together;
  std::vector<std::uint64_t> valid(kRows, kAll);
  for (std::size_t r = 0; r < kRows; r += 3) valid[r] = kAll >> r;
  Rows state(kRows);
  state.Step(together, valid);
  for (std::size_t r = 0; r < kRows; ++r) {
    Rows one(1);
    OnlineSoftmaxBlock(&alone[r * 64], 1, &valid[r], 0, one.max.data(), one.sum.data(),
                       one.corr.data());
    ASSERT_EQ(one.sum[0], state.sum[r]) << r;
    ASSERT_EQ(one.max[0], state.max[r]) << r;
  }
  EXPECT_EQ(alone, together);
}

TEST(OnlineSoftmax, SumHasTheDocumentedLaneOrder) {
  // The same on every instruction set: 16 lanes, then halves.
  std::vector<float> scores = RandomValues(64, 11, 2.0F);
  Rows state(1);
  state.Step(scores, {kAll});
  float lane[16] = {};
  for (std::size_t j = 0; j < 64; ++j) lane[j % 16] += scores[j];
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) lane[j] += lane[j + half];
  }
  EXPECT_EQ(state.sum[0], lane[0]);
}

TEST(OnlineSoftmax, RowsWithoutAValidKeyStayEmpty) {
  std::vector<float> scores(128, std::nanf(""));
  Rows state(2);
  state.Step(scores, {0});
  for (std::size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(state.max[r], -kInf);
    EXPECT_EQ(state.sum[r], 0.0F);
    EXPECT_EQ(state.corr[r], 1.0F);
  }
  EXPECT_EQ(scores, std::vector<float>(128, 0.0F));
}

TEST(OnlineSoftmax, AnEmptyBlockLeavesTheRowAlone) {
  std::vector<float> scores = RandomValues(64, 1);
  Rows state(1);
  state.Step(scores, {kAll});
  const Rows before = state;
  scores.assign(64, 100.0F);
  state.Step(scores, {0});
  EXPECT_EQ(state.max, before.max);
  EXPECT_EQ(state.sum, before.sum);
  EXPECT_EQ(state.corr[0], 1.0F);
}

TEST(OnlineSoftmax, FirstValidBlockAfterEmptyOnesHasCorrectionZero) {
  std::vector<float> scores(64, 3.0F);
  Rows state(1);
  state.Step(scores, {0});
  scores.assign(64, 3.0F);
  state.Step(scores, {0xFF});
  EXPECT_EQ(state.corr[0], 0.0F);
  EXPECT_EQ(state.max[0], 3.0F);
  EXPECT_EQ(state.sum[0], 8.0F);
}

TEST(OnlineSoftmax, ExtremeFiniteScoresAreExact) {
  std::vector<float> scores(64, -3e38F);
  scores[5] = 3e38F;
  Rows state(1);
  state.Step(scores, {kAll});
  EXPECT_EQ(state.sum[0], 1.0F);
  EXPECT_EQ(scores[5], 1.0F);
  EXPECT_EQ(scores[6], 0.0F);
}

TEST(OnlineSoftmax, AnyNonFiniteScoreIsSeenInTheSumForGoodAndNowhereElse) {
  for (const float bad : {kInf, -kInf, std::nanf(""), -std::nanf("")}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{13}, std::size_t{63}}) {
      for (const std::uint64_t mask :
           {kAll, kAll << 1U | (at == 0 ? 1U : 0U), std::uint64_t{1} << at}) {
        std::vector<float> scores = RandomValues(3 * kSoftmaxBlock, 3);
        std::vector<float> clean = scores;
        scores[64 + at] = bad;
        Rows state(3), expected(3);
        state.Step(scores, {kAll, mask, kAll});
        expected.Step(clean, {kAll, mask, kAll});
        for (std::uint32_t block = 0; block < 2; ++block) {
          ASSERT_TRUE(std::isnan(state.sum[1])) << bad << " at " << at;
          ASSERT_EQ(state.sum[0], expected.sum[0]);
          ASSERT_EQ(state.sum[2], expected.sum[2]);
          scores = RandomValues(3 * kSoftmaxBlock, 4 + block, 10.0F);
          clean = scores;
          state.Step(scores, {kAll});
          expected.Step(clean, {kAll});
        }
      }
    }
  }
}

TEST(OnlineSoftmax, AnInvalidNonFiniteScoreIsIgnored) {
  std::vector<float> scores(64, 0.0F);
  scores[9] = std::nanf("");
  scores[10] = kInf;
  Rows state(1);
  state.Step(scores, {kAll & ~(std::uint64_t{3} << 9U)});
  EXPECT_EQ(state.sum[0], 62.0F);
  EXPECT_EQ(scores[9], 0.0F);
  EXPECT_EQ(scores[10], 0.0F);
}

TEST(RescaleRows, MultipliesAndSkipsOnes) {
  for (const std::int64_t cols : {1, 15, 16, 64, 80, 100}) {
    std::vector<float> acc = RandomValues(3 * cols, 1);
    // Not a number stays untouched under a correction of 1: nothing reads it.
    acc[static_cast<std::size_t>(cols)] = std::nanf("");
    const std::vector<float> before = acc;
    const std::vector<float> corr = {0.3F, 1.0F, 0.0F};
    RescaleRows(acc.data(), 3, cols, corr.data());
    for (std::size_t i = 0; i < acc.size(); ++i) {
      const std::size_t r = i / static_cast<std::size_t>(cols);
      const float expected = r != 1 ? before[i] * corr[r] : before[i];
      ASSERT_EQ(std::bit_cast<std::uint32_t>(acc[i]), std::bit_cast<std::uint32_t>(expected)) << i;
    }
  }
}

}  // namespace
}  // namespace attnd::engine
