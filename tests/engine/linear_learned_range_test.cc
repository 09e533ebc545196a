// Activations of learned maps at the ends of their range: exponents that leave f32, two softmaxes
// instead of one, softmaxes that saturate.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/linear/map_weights.h"
#include "engine/linear/ref_learned.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/learned_map.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

using Row = std::vector<double>;

// exp(y) of y beyond 88.7 leaves f32; a maximum subtracted per key would change the kernel.
TEST(LinearLearnedExp, NeitherOverflowsNorForgetsTheScaleOfAKey) {
  const LayerShape shape = {1, 1, 4, 3, 1.0F};
  // What the features of a row have in common leaves f32, what tells them apart does not.
  Numbers numbers = RandomNumbers({MapActivation::kExp, 1, 1, 4, 8, false, false}, 20, 0.03F);
  for (std::size_t i = 0; i < numbers.all.size(); ++i) {
    numbers.all[i] += static_cast<float>(i % 4) - 1.5F;
  }
  const auto engine = MakeLinear(shape, Learned(numbers));
  for (const float length : {1.0F, 40.0F, 400.0F}) {
    Stream stream = MakeStream(shape, 130, 21);
    for (std::int64_t t = 0; t < 130; ++t) {
      // A key in front that outweighs or underweighs all others.
      const float factor = t % 50 == 10 ? length : 0.1F * length;
      for (std::int64_t k = 0; k < 4; ++k) stream.keys[Size(4 * t + k)] *= factor;
    }
    std::vector<float> rows = NormalNumbers(3 * shape.query_row(), 22, length);
    const Answers answers = Attend(*engine, At(*engine, stream, 130), rows.data(), 3);
    EXPECT_EQ(answers.flags, (std::vector<std::uint8_t>{0, 0, 0})) << length;
    // In the log domain: the weights of the definition relative to the largest.
    for (std::int64_t i = 0; i < 3; ++i) {
      const Row q = numbers.Project(true, 0, Row(rows.begin() + 4 * i, rows.begin() + 4 * i + 4));
      double largest = -std::numeric_limits<double>::infinity();
      std::vector<Row> keys;
      for (std::int64_t t = 0; t < 130; ++t) {
        keys.push_back(numbers.Project(
            false, 0, Row(stream.keys.begin() + 4 * t, stream.keys.begin() + 4 * t + 4)));
        for (std::size_t j = 0; j < 8; ++j) largest = std::max(largest, q[j] + keys.back()[j]);
      }
      double sum = 0;
      Row outputs(3, 0.0);
      for (std::int64_t t = 0; t < 130; ++t) {
        double weight = 0;
        for (std::size_t j = 0; j < 8; ++j) {
          weight += std::exp(q[j] + keys[Size(t)][j] - largest);
        }
        sum += weight;
        for (std::size_t v = 0; v < 3; ++v) {
          outputs[v] += weight * static_cast<double>(stream.values[Size(3 * t) + v]);
        }
      }
      for (double& v : outputs) v /= sum;
      const auto first = answers.outputs.begin() + 3 * i;
      // y is a sum of 4 products of numbers as large as length: its rounding is what exp amplifies.
      EXPECT_LT(RelativeError(std::vector<float>(first, first + 3), outputs),
                1e-6 + 2e-6 * static_cast<double>(length))
          << length;
    }
  }
}

// fla builds one softmax over [2y, -2y]; the authors two. A row of both halves sums to 2.
TEST(LinearLearnedHedgehog, IsTwoSoftmaxes) {
  const Numbers numbers = RandomNumbers({MapActivation::kHedgehog, 1, 1, 6, 10, true, true}, 30);
  const auto weights = Build(numbers);
  const std::vector<float> x = NormalNumbers(6, 31);
  const RefFeatures row = RefLearnedKey(*weights, 0, x.data());
  ASSERT_EQ(row.features.size(), 20U);
  double first = 0;
  double second = 0;
  for (std::size_t j = 0; j < 10; ++j) {
    first += static_cast<double>(row.features[j]);
    second += static_cast<double>(row.features[10 + j]);
  }
  EXPECT_NEAR(first, 1, 1e-6);
  EXPECT_NEAR(second, 1, 1e-6);
}

// A saturated softmax is one-hot: kernels that underflow are zeros, and the flag says so.
TEST(LinearLearnedSoftmax, SaturatedRowsStayFinite) {
  const LayerShape shape = {1, 1, 2, 1, 1.0F};
  // y = x for keys; y = (x_1, x_0) for queries.
  const Numbers numbers = {{MapActivation::kSoftmax, 1, 1, 2, 2, false, false},
                           {1, 0, 0, 1, 0, 1, 1, 0}};
  LinearConfig config = Learned(numbers);
  config.guard_epsilon = 1e-6F;
  const auto engine = MakeLinear(shape, config);
  Stream stream = MakeStream(shape, 2, 40);
  stream.keys = {1e30F, -1e30F, 1e30F, -1e30F};
  const std::vector<float> queries = {1e30F, -1e30F, -1e30F, 1e30F};
  const Answers answers = Attend(*engine, At(*engine, stream, 2), queries.data(), 2);
  EXPECT_EQ(answers.denominators, (std::vector<float>{0.0F, 2.0F}));
  EXPECT_EQ(answers.flags[0], static_cast<std::uint8_t>(RowFlag::kNonPositive));
  EXPECT_EQ(answers.outputs[0], 0.0F);
  EXPECT_EQ(answers.flags[1], 0);
}

}  // namespace
}  // namespace attnd::engine::linear_test
