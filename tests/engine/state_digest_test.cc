// The digest of a layer follows its tokens, however they came, and nothing else.
#include "engine/state_digest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine_config.h"
#include "engine/exact/exact_engine.h"
#include "engine/layer_stream.h"
#include "engine/token_rows.h"
#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

constexpr LayerShape kShape = {.kv_heads = 2, .query_heads = 2, .key_dim = 3, .value_dim = 2};
constexpr std::int64_t kTokens = 200;

class StateDigest : public ::testing::Test {
 protected:
  StateDigest()
      : engine_(MakeExactEngine(kShape, ExactConfig{}).value()),
        keys_(static_cast<std::size_t>(kTokens * kShape.key_row())),
        values_(static_cast<std::size_t>(kTokens * kShape.value_row())),
        mask_(kTokens, 1) {
    for (std::size_t i = 0; i < keys_.size(); ++i) keys_[i] = static_cast<float>(i % 89) - 40.0F;
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<float>(i % 97);
    mask_[5] = mask_[130] = 0;
  }

  // Of the first `count` tokens, appended in pieces of `piece`.
  Digest Of(std::int64_t count, std::int64_t piece) {
    TokenBatch batch;
    batch.count = kTokens;
    batch.keys = {DataType::kF32, keys_.data(), static_cast<std::int64_t>(keys_.size())};
    batch.values = {DataType::kF32, values_.data(), static_cast<std::int64_t>(values_.size())};
    batch.mask = mask_.data();
    std::shared_ptr<const LayerState> state = EmptyLayer(*engine_);
    for (std::int64_t first = 0; first < count; first += piece) {
      LayerDraft draft(*engine_, state);
      const std::int64_t now = std::min(piece, count - first);
      EXPECT_TRUE(draft.Append(batch, first, now, nullptr, scratch_).ok());
      state = draft.Finish();
    }
    return LayerDigest(*engine_, *state);
  }

  std::unique_ptr<const Engine> engine_;
  Scratch scratch_;
  std::vector<float> keys_;
  std::vector<float> values_;
  std::vector<std::uint8_t> mask_;
};

TEST_F(StateDigest, DoesNotDependOnHowTokensWereCut) {
  for (const std::int64_t count : {1, 63, 64, 65, 128, 129, 200}) {
    const Digest whole = Of(count, count);
    for (const std::int64_t piece : {1, 7, 64, 65, 100}) EXPECT_EQ(Of(count, piece), whole);
  }
}

TEST_F(StateDigest, OfNoTokensIsZeroAndEveryTokenChangesIt) {
  Digest before = {};
  EXPECT_EQ(Of(0, 1), before);
  for (std::int64_t count = 1; count <= kTokens; ++count) {
    const Digest now = Of(count, count);
    EXPECT_FALSE(now == before) << count;
    before = now;
  }
}

TEST_F(StateDigest, SeesEveryTensorOfSealedAndOpenBlocks) {
  const Digest whole = Of(kTokens, kTokens);
  for (const std::size_t token : {std::size_t{0}, std::size_t{70}, std::size_t{199}}) {
    keys_[token * 6] += 1.0F;
    EXPECT_FALSE(Of(kTokens, kTokens) == whole) << token;
    keys_[token * 6] -= 1.0F;
    values_[token * 4] += 1.0F;
    EXPECT_FALSE(Of(kTokens, kTokens) == whole) << token;
    values_[token * 4] -= 1.0F;
    mask_[token] = 0;
    EXPECT_FALSE(Of(kTokens, kTokens) == whole) << token;
    mask_[token] = 1;
  }
  EXPECT_EQ(Of(kTokens, kTokens), whole);
}

}  // namespace
}  // namespace attnd::engine
