#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "client/demo/dataset.h"
#include "client/demo/difference.h"
#include "client/demo/main_job.h"
#include "client/demo/reference.h"

namespace attnd::demo {
namespace {

Dataset Small() {
  Dataset data;
  data.keys = {{0, 0, 1, 0, 0, 2}, 3, 1, 2};
  data.values = {{3, 6, 9}, 3, 1, 1};
  return data;
}

TEST(DemoReference, SoftmaxByHand) {
  const Dataset data = Small();
  const Reference reference(Kind::kSoftmax, data, 0.5);
  const float query[] = {2, 1};
  // Scores 0, 1 and 1.
  const double e = std::exp(1.0);
  EXPECT_DOUBLE_EQ(reference.Answer(query, 1)[0], 3);
  EXPECT_NEAR(reference.Answer(query, 2)[0], (3 + 6 * e) / (1 + e), 1e-14);
  EXPECT_NEAR(reference.Answer(query, 3)[0], (3 + 6 * e + 9 * e) / (1 + 2 * e), 1e-14);
}

TEST(DemoReference, LinearByHand) {
  const Dataset data = Small();
  const Reference reference(Kind::kLinear, data, 1.0);
  const float query[] = {-1, 1};  // phi: exp(-1), 2
  const double a = std::exp(-1.0);
  const double first = a * 1 + 2 * 1;   // phi(0, 0) = (1, 1)
  const double second = a * 2 + 2 * 1;  // phi(1, 0) = (2, 1)
  const double third = a * 1 + 2 * 3;   // phi(0, 2) = (1, 3)
  EXPECT_NEAR(reference.Answer(query, 2)[0], (3 * first + 6 * second) / (first + second), 1e-14);
  EXPECT_NEAR(reference.Answer(query, 3)[0],
              (3 * first + 6 * second + 9 * third) / (first + second + third), 1e-14);
}

TEST(DemoDifference, IsRelativeToTheLargestOutput) {
  Difference difference;
  EXPECT_EQ(difference.relative(), 0);
  difference.Add(std::array{1.0F, -4.0F}, std::array{1.5, -4.0});
  difference.Add(std::array{2.0F}, std::array{2.25});
  EXPECT_EQ(difference.relative(), 0.5 / 4);
}

TEST(DemoDifference, ANaNFollowedByAGoodOutputDidPass) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kNaN, kInfinity, -kInfinity}) {
    Difference output;
    output.Add(std::array{1.0F, bad, 1.0F}, std::array{1.0, 1.0, 1.0});
    output.Add(std::array{1.0F}, std::array{1.0});
    EXPECT_EQ(output.relative(), std::numeric_limits<double>::infinity()) << bad;
    Difference reference;
    reference.Add(std::array{bad, 1.0F}, std::array{double{bad}, 1.0});
    EXPECT_EQ(reference.relative(), std::numeric_limits<double>::infinity()) << bad;
  }
}

TEST(DemoDifference, AnotherNumberOfOutputsIsNoMatch) {
  Difference difference;
  difference.Add(std::array{1.0F}, std::array{1.0, 1.0});
  difference.Add(std::array{1.0F, 1.0F}, std::array{1.0, 1.0});
  EXPECT_EQ(difference.relative(), std::numeric_limits<double>::infinity());
}

TEST(DemoDatasets, AreThereAndFitTogether) {
  const auto sets = LoadDatasets(ATTND_SOURCE_DIR "/tests/data");
  ASSERT_TRUE(sets.ok()) << sets.status();
  ASSERT_EQ(sets->size(), 2U);
  for (const Dataset& data : *sets) {
    EXPECT_EQ(data.token_queries.rows, data.keys.rows);
    EXPECT_GE(data.questions.rows, 256);
    EXPECT_EQ(data.question_tensor.rows(), data.questions.rows);
  }
  EXPECT_FALSE(LoadDatasets("/nonexistent").ok());
}

}  // namespace
}  // namespace attnd::demo
