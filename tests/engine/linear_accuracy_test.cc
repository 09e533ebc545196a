// What is left of an output's digits after a long stream: elu + 1, c = d_v = 64, keys of unit
// variance. f32 totals are off by 1e-4 after 4 million tokens; the bar is 1e-6.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

constexpr LayerShape kShape = {1, 1, 64, 64, 0.125F};
constexpr std::int64_t kQueries = 2;

// max |error| / max |output| over the first half of the columns, whose values have mean 0 (outputs
// are small against the sums they are made of), and over the second, whose values have mean 1.
struct Errors {
  double centred;
  double offset;
};

double HalfError(const std::vector<float>& outputs, const std::vector<double>& truth,
                 std::size_t half) {
  std::vector<float> a;
  std::vector<double> b;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    if (i % 64 / 32 != half) continue;
    a.push_back(outputs[i]);
    b.push_back(truth[i]);
  }
  return RelativeError(a, b);
}

Errors ErrorsAfter(std::int64_t tokens) {
  constexpr std::int64_t kChunk = kBlockTokens * 1024;
  const auto engine = MakeLinear(kShape, Config("elu_plus_one"));
  const std::vector<float> rows = NormalNumbers(kQueries * kShape.query_row(), 71, 8.0F);
  const std::shared_ptr<SealedState> sealed = engine->NewState();
  std::vector<double> numerators(static_cast<std::size_t>(kQueries * 64), 0.0);
  std::vector<double> denominators(static_cast<std::size_t>(kQueries), 0.0);
  Scratch scratch;
  for (std::int64_t first = 0; first < tokens; first += kChunk) {
    const std::int64_t count = std::min(kChunk, tokens - first);
    Stream stream = MakeStream(kShape, count, static_cast<std::uint32_t>(100 + first / kChunk));
    for (std::size_t i = 0; i < stream.values.size(); ++i) {
      if (i % 64 >= 32) stream.values[i] += 1.0F;
    }
    std::vector<Block> blocks;
    for (std::int64_t token = 0; token < count; token += kBlockTokens) {
      blocks.push_back({stream.keys.data() + token * 64, stream.values.data() + token * 64,
                        ~RowMask{0}, nullptr});
    }
    EXPECT_TRUE(engine->Seal(*sealed, first, blocks, scratch).ok());
    // Sums over tokens are additive, so that the truth is taken chunk by chunk.
    const oracle::Answers truth =
        oracle::Linear(stream.context(count), {rows.data(), oracle::AllVisible(kQueries, count)},
                       oracle::FeatureMap::kEluPlusOne, 0, true);
    for (std::size_t i = 0; i < numerators.size(); ++i) numerators[i] += truth.numerators[i];
    for (std::size_t i = 0; i < denominators.size(); ++i) denominators[i] += truth.denominators[i];
  }
  for (std::size_t i = 0; i < numerators.size(); ++i) numerators[i] /= denominators[i / 64];
  Snapshot snapshot;
  snapshot.sealed = sealed;
  snapshot.sealed_tokens = tokens;
  const Answers answers = Attend(*engine, snapshot, rows.data(), kQueries);
  const Errors errors = {HalfError(answers.outputs, numerators, 0),
                         HalfError(answers.outputs, numerators, 1)};
  std::printf("max |error| / max |output| after %lld tokens: %.2g (values of mean 0), %.2g (1)\n",
              static_cast<long long>(tokens), errors.centred, errors.offset);
  return errors;
}

TEST(LinearAccuracy, HoldsAfter200ThousandTokens) {
  const Errors errors = ErrorsAfter(200'000 / kBlockTokens * kBlockTokens);
  EXPECT_LT(errors.centred, 1e-6);
  EXPECT_LT(errors.offset, 1e-6);
}

TEST(LongLinear, HoldsAfter4MillionTokens) {
  const Errors errors = ErrorsAfter(4'000'000);
  EXPECT_LT(errors.centred, 1e-6);
  EXPECT_LT(errors.offset, 1e-6);
}

}  // namespace
}  // namespace attnd::engine::linear_test
