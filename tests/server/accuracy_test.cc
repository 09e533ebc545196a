// The accuracy that clients ask for: what is refused, and whose field is in force.
#include "server/accuracy.h"

#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "server/error.h"

namespace attnd::server {
namespace {

v1::Accuracy Asked(double target_error, std::int64_t max_keys) {
  v1::Accuracy accuracy;
  accuracy.set_target_error(target_error);
  accuracy.set_max_keys(max_keys);
  return accuracy;
}

TEST(Accuracy, IsAtLeastZeroAndFinite) {
  const auto refusal = [](double target_error, std::int64_t max_keys) {
    const absl::Status status = CheckAccuracy(Asked(target_error, max_keys), "accuracy").status();
    EXPECT_EQ(ReasonOf(status), v1::INVALID_FIELD);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal(-0.5, 0), "accuracy.target_error is -0.5; it must be at least 0 and finite");
  EXPECT_EQ(refusal(INFINITY, 0), "accuracy.target_error is inf; it must be at least 0 and finite");
  EXPECT_NE(refusal(NAN, 0).find("target_error is nan"), std::string::npos);
  EXPECT_EQ(refusal(0.1, -3), "accuracy.max_keys is -3; it must be at least 0");
  EXPECT_NE(refusal(0, std::numeric_limits<std::int64_t>::min()).find("max_keys"),
            std::string::npos);
  const auto most = CheckAccuracy(
      Asked(std::numeric_limits<double>::max(), std::numeric_limits<std::int64_t>::max()),
      "accuracy");
  ASSERT_TRUE(most.ok());
  EXPECT_EQ(most->target_error, std::numeric_limits<double>::max());
  EXPECT_EQ(most->max_keys, std::numeric_limits<std::int64_t>::max());
}

// As bytes they differ, and so would configurations and retries.
TEST(Accuracy, ANegativeZeroIsZero) {
  EXPECT_FALSE(std::signbit(CheckAccuracy(Asked(-0.0, 0), "accuracy")->target_error));
}

TEST(Accuracy, ARequestReplacesTheFieldsThatItSets) {
  const engine::Accuracy session = {0.05, 1000};
  EXPECT_EQ(InForce({}, session).target_error, 0.05);
  EXPECT_EQ(InForce({}, session).max_keys, 1000);
  EXPECT_EQ(InForce({0.2, 0}, session).target_error, 0.2);
  EXPECT_EQ(InForce({0.2, 0}, session).max_keys, 1000);
  EXPECT_EQ(InForce({0, 1 << 30}, session).target_error, 0.05);
  EXPECT_EQ(InForce({0, 1 << 30}, session).max_keys, 1 << 30);
}

}  // namespace
}  // namespace attnd::server
