// Sealing again the rows that a sealed state gives back.
#ifndef ATTND_TESTS_ENGINE_KEPT_ROWS_H_
#define ATTND_TESTS_ENGINE_KEPT_ROWS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/block.h"
#include "engine/engine.h"
#include "engine/scratch.h"
#include "gtest/gtest.h"
#include "tests/engine/exact_harness.h"
#include "tests/engine/harness_common.h"

namespace attnd::engine {

struct KeptBlock {
  std::vector<float> keys;
  std::vector<float> values;
  RowMask valid = 0;
};

// Every number still has to be written.
inline KeptBlock ReadKept(const Engine& engine, const SealedState& state, std::int64_t block) {
  KeptBlock kept = {std::vector<float>(Size(kBlockTokens * engine.shape().key_row()), -7.0F),
                    std::vector<float>(Size(kBlockTokens * engine.shape().value_row()), -7.0F)};
  kept.valid = engine.ReadBlock(state, block, kept.keys.data(), kept.values.data());
  return kept;
}

// The rows of block `block` are those of `tokens`, bit for bit.
inline void ExpectKept(const Engine& engine, const exact_test::Tokens& tokens,
                       const SealedState& state, std::int64_t block) {
  const KeptBlock kept = ReadKept(engine, state, block);
  const std::int64_t first = block * kBlockTokens;
  ASSERT_EQ(kept.valid, ValidRows(tokens.mask, first, kBlockTokens)) << block;
  const auto stored = [first](const std::vector<float>& rows, std::int64_t row) {
    return std::vector<float>(rows.begin() + first * row,
                              rows.begin() + (first + kBlockTokens) * row);
  };
  ASSERT_TRUE(SameBits(kept.keys, stored(tokens.keys, engine.shape().key_row()))) << block;
  ASSERT_TRUE(SameBits(kept.values, stored(tokens.values, engine.shape().value_row()))) << block;
}

// A state made of the rows of a state of `blocks` blocks.
inline std::shared_ptr<SealedState> Restored(const Engine& engine, const SealedState& state,
                                             std::int64_t blocks) {
  const std::int64_t first = engine.FirstKeptBlock(state);
  std::shared_ptr<SealedState> restored = engine.NewStateAt(first);
  Scratch scratch;
  for (std::int64_t b = first; b < blocks; ++b) {
    const KeptBlock kept = ReadKept(engine, state, b);
    const Block block = {
        .keys = kept.keys.data(), .values = kept.values.data(), .valid = kept.valid};
    const absl::Status sealed =
        engine.Seal(*restored, b * kBlockTokens, std::span(&block, 1), scratch);
    EXPECT_TRUE(sealed.ok()) << sealed;
  }
  return restored;
}

}  // namespace attnd::engine

#endif  // ATTND_TESTS_ENGINE_KEPT_ROWS_H_
