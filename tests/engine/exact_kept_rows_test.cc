// The exact engine gives back the rows that it sealed.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine_config.h"
#include "engine/exact/exact_engine.h"
#include "engine/scratch.h"
#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

constexpr LayerShape kShape = {.kv_heads = 2, .query_heads = 2, .key_dim = 3, .value_dim = 5};

// Seals 20 blocks and reads those that are kept.
void ExpectRowsComeBack(DataType storage, std::int64_t window, std::int64_t first_kept) {
  const std::unique_ptr<const Engine> engine =
      MakeExactEngine(kShape, ExactConfig{.storage = storage}, window).value();
  ASSERT_TRUE(engine->keeps_rows());
  constexpr std::int64_t kBlocks = 20;
  const auto keys = static_cast<std::size_t>(kBlockTokens * kShape.key_row());
  const auto values = static_cast<std::size_t>(kBlockTokens * kShape.value_row());
  std::vector<std::vector<float>> sealed;
  const std::shared_ptr<SealedState> state = engine->NewState();
  Scratch scratch;
  for (std::int64_t b = 0; b < kBlocks; ++b) {
    std::vector<float>& rows = sealed.emplace_back(keys + values);
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] = static_cast<float>(b) + 0.37F * static_cast<float>(i);
    engine->RoundToStorage(rows.data(), static_cast<std::int64_t>(rows.size()));
    const Block block = {
        .keys = rows.data(), .values = rows.data() + keys, .valid = ~static_cast<RowMask>(b)};
    ASSERT_TRUE(engine->Seal(*state, b * kBlockTokens, std::span(&block, 1), scratch).ok());
  }
  ASSERT_EQ(engine->FirstKeptBlock(*state), first_kept);
  for (std::int64_t b = first_kept; b < kBlocks; ++b) {
    std::vector<float> rows(keys + values);
    EXPECT_EQ(engine->ReadBlock(*state, b, rows.data(), rows.data() + keys),
              ~static_cast<RowMask>(b));
    EXPECT_EQ(rows, sealed[static_cast<std::size_t>(b)]) << b;
  }
}

TEST(ExactKeptRows, ComeBackAsStored) {
  ExpectRowsComeBack(DataType::kF32, 0, 0);
  ExpectRowsComeBack(DataType::kBf16, 0, 0);
}

TEST(ExactKeptRows, OfAWindowAreThoseThatItSees) {
  ExpectRowsComeBack(DataType::kF32, 256, 16);
  ExpectRowsComeBack(DataType::kBf16, 256, 16);
}

}  // namespace
}  // namespace attnd::engine
