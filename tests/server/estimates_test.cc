// Estimates: where the engine writes them, and which rows met their target.
#include "server/estimates.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace attnd::server {
namespace {

std::vector<std::int64_t> ShapeOf(const v1::Tensor& tensor) {
  EXPECT_EQ(tensor.dtype(), v1::F32);
  std::size_t bytes = sizeof(float);
  for (const std::int64_t size : tensor.shape()) bytes *= static_cast<std::size_t>(size);
  EXPECT_EQ(tensor.data().size(), bytes);
  return {tensor.shape().begin(), tensor.shape().end()};
}

TEST(Estimates, LaysOutAllOfThem) {
  v1::Estimates estimates;
  EstimateBuilder builder(3, 2, &estimates);
  EXPECT_EQ(builder.rows(), 6);
  EXPECT_EQ(estimates.coverage(), 0.95);
  EXPECT_EQ(ShapeOf(estimates.errors()), (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(ShapeOf(estimates.log_normalizer_bounds()), (std::vector<std::int64_t>{3, 2, 2}));
  EXPECT_EQ(ShapeOf(estimates.exact_masses()), (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(estimates.keys_evaluated_size(), 6);
  EXPECT_EQ(estimates.paths().size(), 6U);
  EXPECT_EQ(estimates.calibrated().size(), 6U);
  EXPECT_EQ(estimates.target_met().size(), 6U);

  const engine::EstimateView fifth = builder.View(4);
  fifth.errors[0] = 0.25F;
  fifth.log_normalizer_bounds[1] = 3.5F;
  fifth.exact_masses[0] = 0.75F;
  fifth.keys_evaluated[0] = 1234;
  fifth.paths[0] = static_cast<std::uint8_t>(engine::AnswerPath::kCertified);
  fifth.calibrated[0] = 1;
  const auto element = [](const v1::Tensor& tensor, std::size_t index) {
    float number = 0;
    std::memcpy(&number, tensor.data().data() + index * sizeof number, sizeof number);
    return number;
  };
  EXPECT_EQ(element(estimates.errors(), 4), 0.25F);
  EXPECT_EQ(element(estimates.log_normalizer_bounds(), 9), 3.5F);
  EXPECT_EQ(element(estimates.exact_masses(), 4), 0.75F);
  EXPECT_EQ(estimates.keys_evaluated(4), 1234);
  EXPECT_EQ(estimates.paths(), std::string("\0\0\0\0\2\0", 6));
  EXPECT_EQ(estimates.calibrated(), std::string("\0\0\0\0\1\0", 6));
}

TEST(Estimates, WithoutAMessageKeepsWhatTheMetricsNeed) {
  const EstimateBuilder builder(2, 3, nullptr);
  const engine::EstimateView first = builder.View(0);
  const engine::EstimateView last = builder.View(5);
  EXPECT_EQ(last.errors - first.errors, 5);
  EXPECT_EQ(last.keys_evaluated - first.keys_evaluated, 5);
  EXPECT_EQ(last.paths - first.paths, 5);
  EXPECT_EQ(last.calibrated - first.calibrated, 5);
  EXPECT_EQ(last.audited_errors - first.audited_errors, 5);
  EXPECT_EQ(*last.audited_errors, -1.0F) << "no row is audited until an audit says so";
  EXPECT_EQ(first.log_normalizer_bounds, nullptr);
  EXPECT_EQ(last.exact_masses, nullptr);
}

TEST(Estimates, ATargetIsMetByErrorsUpToIt) {
  const auto met = [](double target_error) {
    v1::Estimates estimates;
    EstimateBuilder builder(5, 1, &estimates);
    const std::vector<float> errors = {0, 0.125F, 0.25F, INFINITY, NAN};
    std::copy(errors.begin(), errors.end(), builder.View(0).errors);
    builder.Finish(target_error);
    return estimates.target_met();
  };
  EXPECT_EQ(met(0.125), std::string("\1\1\0\0\0", 5));
  EXPECT_EQ(met(1), std::string("\1\1\1\0\0", 5));
  EXPECT_EQ(met(0), std::string("\1\1\1\1\1", 5)) << "without a target there is none to miss";
}

}  // namespace
}  // namespace attnd::server
