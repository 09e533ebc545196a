#include "tests/oracle/relative_error.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace attnd::oracle {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const float kNan = std::nanf("");

TEST(RelativeError, IsTheLargestDifferenceOverTheLargestTruth) {
  EXPECT_EQ(RelativeError({1.0F, -3.0F, 8.5F}, {1.0, -4.0, 8.0}), 1.0 / 8.0);
  EXPECT_EQ(RelativeError({1.0F, 2.0F}, {1.0, -4.0}), 6.0 / 4.0);
  EXPECT_EQ(RelativeError({0.0F, 2.0F}, {0.0, 2.0}), 0.0);
}

TEST(RelativeError, ANanIsInfinitelyWrongWhereverItStands) {
  for (std::size_t place = 0; place < 3; ++place) {
    std::vector<float> answers = {1.0F, 2.0F, 3.0F};
    answers[place] = kNan;
    EXPECT_EQ(RelativeError(answers, {1.0, 2.0, 3.0}), kInfinity) << place;
    std::vector<double> truth = {1.0, 2.0, 3.0};
    truth[place] = std::nan("");
    EXPECT_EQ(RelativeError({1.0F, 2.0F, 3.0F}, truth), kInfinity) << place;
    EXPECT_EQ(RelativeError(answers, truth), kInfinity) << place;
  }
}

TEST(RelativeError, EqualInfinitiesAreEqualAndDoNotHideTheRest) {
  EXPECT_EQ(RelativeError({-kInf, kInf}, {-kInfinity, kInfinity}), 0.0);
  EXPECT_EQ(RelativeError({-kInf, 1.0F, 3.0F}, {-kInfinity, 2.0, 4.0}), 1.0 / 4.0);
}

TEST(RelativeError, OtherInfinitiesAreInfinitelyWrong) {
  EXPECT_EQ(RelativeError({kInf, 1.0F}, {-kInfinity, 1.0}), kInfinity);
  EXPECT_EQ(RelativeError({kInf, 1.0F}, {1.0, 1.0}), kInfinity);
  EXPECT_EQ(RelativeError({1.0F, 1.0F}, {1.0, -kInfinity}), kInfinity);
}

TEST(RelativeError, OtherSizesAndNothingAtAllAreInfinitelyWrong) {
  EXPECT_EQ(RelativeError({1.0F}, {1.0, 1.0}), kInfinity);
  EXPECT_EQ(RelativeError({1.0F, 1.0F}, {1.0}), kInfinity);
  EXPECT_EQ(RelativeError({}, {}), kInfinity);
}

TEST(RelativeError, OfATruthOfZerosIsZeroOrInfinite) {
  EXPECT_EQ(RelativeError({0.0F, -0.0F}, {0.0, 0.0}), 0.0);
  EXPECT_EQ(RelativeError({0.0F, 1e-30F}, {0.0, 0.0}), kInfinity);
}

}  // namespace
}  // namespace attnd::oracle
