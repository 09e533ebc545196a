// The exact engine on real tensors: the cuts in tests/data and, where they are present, the full
// sets in ../shared/data, which are skipped otherwise.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/exact_harness.h"

namespace attnd::engine::exact_test {
namespace {

// Every `step`-th query over the whole context, in both storage types.
void ExpectAgreement(Tokens tokens, const std::vector<float>& queries, std::int64_t step,
                     double bound) {
  const std::int64_t row = tokens.shape.query_row();
  std::vector<float> asked;
  for (std::int64_t q = 0; q * row < static_cast<std::int64_t>(queries.size()); q += step) {
    asked.insert(asked.end(), queries.begin() + q * row, queries.begin() + (q + 1) * row);
  }
  const std::int64_t n = static_cast<std::int64_t>(asked.size()) / row;
  for (const DataType storage : {DataType::kF32, DataType::kBf16}) {
    const auto engine = MakeExact(tokens.shape, storage);
    tokens.Round(*engine);
    const Snapshot snapshot = At(*engine, tokens, tokens.count);
    const Answers answers = Attend(*engine, snapshot, asked.data(), n);
    const oracle::Answers expected =
        oracle::Softmax(tokens.context(), {asked.data(), oracle::AllVisible(n, tokens.count)});
    EXPECT_LT(RelativeError(answers.outputs, expected.outputs), bound);
    EXPECT_LT(RelativeError(answers.log_normalizers, expected.log_normalizers), bound);
    EXPECT_TRUE(Attend(*engine, snapshot, asked.data(), 1) == answers.Slice(0, 1, n));
  }
}

void ExpectAgreement(const data::TensorSet& set, std::int64_t step, double bound) {
  for (const data::Layer& layer : set.layers) {
    ExpectAgreement({.shape = set.shape,
                     .count = set.tokens,
                     .keys = layer.keys,
                     .values = layer.values,
                     .mask = std::vector<std::uint8_t>(static_cast<std::size_t>(set.tokens), 1)},
                    layer.queries, step, bound);
  }
}

TEST(ExactRealDataTest, WordVectors) { ExpectAgreement(data::WordVectors(), 32, 3e-6); }

TEST(ExactRealDataTest, TextRecogniserHeads) {
  ExpectAgreement(data::TextRecogniserHeads(), 16, 3e-6);
}

class ExactSharedData : public ::testing::TestWithParam<data::SharedHeads> {};

TEST_P(ExactSharedData, EveryLayer) {
  const std::optional<data::TensorSet> set = data::ReadShared(GetParam());
  if (!set.has_value())
    GTEST_SKIP() << "../shared/data/" << GetParam().name << "_k.npy is not there";
  // Logits down to -395: an error of their f32 product is an error of the weights.
  ExpectAgreement(*set, 64, 3e-5);
}

INSTANTIATE_TEST_SUITE_P(Sets, ExactSharedData, ::testing::ValuesIn(data::kSharedHeads),
                         [](const auto& set) { return std::string(set.param.name); });

}  // namespace
}  // namespace attnd::engine::exact_test
