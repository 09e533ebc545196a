// The exact engine on real tensors: the cuts in tests/data and, where they are present, the full
// sets in ../shared/data, which are skipped otherwise.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/real_data.h"

namespace attnd::engine::exact_test {
namespace {

namespace fs = std::filesystem;
using real_data::Cuts;
using real_data::ReadF32;
using real_data::Shared;
using real_data::TokensFirst;

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

Tokens MakeTokens(const LayerShape& shape, std::vector<float> keys, std::vector<float> values) {
  const std::int64_t count = static_cast<std::int64_t>(keys.size()) / shape.key_row();
  return {.shape = shape,
          .count = count,
          .keys = std::move(keys),
          .values = std::move(values),
          .mask = std::vector<std::uint8_t>(static_cast<std::size_t>(count), 1)};
}

TEST(ExactRealDataTest, WordVectors) {
  const LayerShape shape = {1, 1, 100, 100, 1.0F};
  const Tokens tokens =
      MakeTokens(shape, ReadF32(Cuts() / "glove_keys.npy"), ReadF32(Cuts() / "glove_values.npy"));
  ASSERT_EQ(tokens.count, 4096);
  ExpectAgreement(tokens, tokens.keys, 32, 3e-6);
}

TEST(ExactRealDataTest, TextRecogniserHeads) {
  const LayerShape shape = {4, 4, 15, 15, 1.0F / std::sqrt(15.0F)};
  const Tokens tokens =
      MakeTokens(shape, ReadF32(Cuts() / "ocr_keys.npy"), ReadF32(Cuts() / "ocr_values.npy"));
  ASSERT_EQ(tokens.count, 2048);
  ExpectAgreement(tokens, ReadF32(Cuts() / "ocr_queries.npy"), 16, 3e-6);
}

struct SharedSet {
  std::string name;
  std::int64_t layers, query_heads, kv_heads, tokens, dim;
};

class ExactSharedData : public ::testing::TestWithParam<SharedSet> {};

TEST_P(ExactSharedData, EveryLayer) {
  const SharedSet& set = GetParam();
  const fs::path stem = Shared() / set.name;
  if (!fs::exists(stem.string() + "_k.npy")) {
    GTEST_SKIP() << stem << "_k.npy is not there";
  }
  const std::vector<float> q = ReadF32(stem.string() + "_q.npy");
  const std::vector<float> k = ReadF32(stem.string() + "_k.npy");
  const std::vector<float> v = ReadF32(stem.string() + "_v.npy");
  const LayerShape shape = {set.kv_heads, set.query_heads, set.dim, set.dim,
                            1.0F / std::sqrt(static_cast<float>(set.dim))};
  for (std::int64_t layer = 0; layer < set.layers; ++layer) {
    const std::int64_t kv = layer * set.kv_heads * set.tokens * set.dim;
    const Tokens tokens =
        MakeTokens(shape, TokensFirst(k.data() + kv, set.kv_heads, set.tokens, set.dim),
                   TokensFirst(v.data() + kv, set.kv_heads, set.tokens, set.dim));
    const float* queries = q.data() + layer * set.query_heads * set.tokens * set.dim;
    // Logits down to -395: an error of their f32 product is an error of the weights.
    ExpectAgreement(tokens, TokensFirst(queries, set.query_heads, set.tokens, set.dim), 64, 3e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, ExactSharedData,
                         ::testing::Values(SharedSet{"qkv_stories260k_ntk4096", 5, 8, 4, 4096, 8},
                                           SharedSet{"qkv_ppocr4_svtr_n4096", 2, 8, 8, 4096, 15},
                                           SharedSet{"qkv_kjv64_n4096", 4, 2, 2, 4096, 64},
                                           SharedSet{"qkv_kwt1_n99", 48, 1, 1, 99, 64}),
                         [](const auto& set) { return set.param.name; });

}  // namespace
}  // namespace attnd::engine::exact_test
