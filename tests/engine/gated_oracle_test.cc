// The gated engine against the recurrence in f64.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/gated_harness.h"
#include "tests/oracle/relative_error.h"

namespace attnd::engine::gated_test {
namespace {

using linear_test::NormalNumbers;
using oracle::RelativeError;

class GatedOracle : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t kTokens = 64 * 4 + 9;
  static constexpr double kBound = 5e-6;

  GatedOracle() {
    for (const std::int64_t token : {0, 7, 63, 64, 100, 128, 129, 200, 255}) stream_.Mask(token);
  }

  const std::unique_ptr<const Engine> engine_ = Make(GetParam());
  Stream stream_ = Stream(GetParam(), kTokens, 11);
  const std::vector<float> queries_ = NormalNumbers(kTokens * GetParam().shape.query_row(), 12);
};

TEST_P(GatedOracle, AttendsAgreeWithTheRecurrence) {
  const LayerShape& shape = GetParam().shape;
  const oracle::Recurrence rule = stream_.recurrence();
  for (const std::int64_t position :
       {1, 2, 3, 8, 63, 64, 65, 66, 101, 127, 128, 129, 130, 192, 193, 256, 257, 265}) {
    SCOPED_TRACE(position);
    const auto state = At(*engine_, stream_, position);
    const Answers answers = Attend(*engine_, *state, queries_.data(), 5);
    const oracle::Answers truth = Recur(
        stream_.context(position), {queries_.data(), std::vector<std::int64_t>(5, position)}, rule);
    for (std::size_t row = 0; row < truth.empty.size(); ++row) {
      ASSERT_EQ(answers.flags[row] == 1, truth.empty[row] == 1);
    }
    if (truth.empty[0] == 1) continue;
    // What is read before the only token is written are zeros.
    if (GetParam().config.update.read_first && position <= 2) continue;
    EXPECT_LE(RelativeError(answers.numerators, truth.numerators), kBound);
    EXPECT_LE(RelativeError(answers.outputs, truth.outputs), kBound);
    if (engine_->has_denominators()) {
      EXPECT_LE(RelativeError(answers.denominators, truth.denominators), kBound);
    }
  }
  EXPECT_EQ(shape.query_heads % shape.kv_heads, 0);
}

TEST_P(GatedOracle, StepsAgreeWithTheRecurrence) {
  const LayerShape& shape = GetParam().shape;
  auto state = At(*engine_, stream_, 130);
  // Tokens 130 to 191 in Steps of 1, 30 and 31: all of one block.
  std::vector<float> outputs;
  std::int64_t position = 130;
  for (const std::int64_t count : {1, 30, 31}) {
    state = Append(*engine_, stream_, state, position + count);
    const Answers answers =
        Step(*engine_, *state, queries_.data() + position * shape.query_row(), count);
    outputs.insert(outputs.end(), answers.outputs.begin(), answers.outputs.end());
    position += count;
  }
  const oracle::Answers truth =
      Recur(stream_.context(kTokens),
            {queries_.data() + 130 * shape.query_row(), oracle::CausallyVisible(62, 131)},
            stream_.recurrence());
  EXPECT_LE(RelativeError(outputs, truth.outputs), kBound);
}

INSTANTIATE_TEST_SUITE_P(Rules, GatedOracle, testing::ValuesIn(AllCases()),
                         [](const auto& rule) { return rule.param.name; });

}  // namespace
}  // namespace attnd::engine::gated_test
