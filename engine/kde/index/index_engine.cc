#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "engine/exact/segment.h"
#include "engine/kde/index/audit_record.h"
#include "engine/kde/index/index_plan.h"
#include "engine/kde/index/index_span.h"
#include "engine/kde/index/index_state.h"
#include "engine/kde/index/upkeep_schedule.h"
#include "engine/kde/kde_mode_engine.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

// In mode AUTO the index is not asked below this context, where building it costs more than it
// saves, and rows that would read more than this share of the keys read all of them.
constexpr std::int64_t kLeastAutoTokens = 4096;
constexpr float kMostAutoShare = 0.3F;

class IndexEngine final : public KdeModeEngine {
 public:
  using KdeModeEngine::KdeModeEngine;

  std::shared_ptr<SealedState> NewState() const override {
    return std::make_shared<IndexState>(shape());
  }
  std::shared_ptr<SealedState> Clone(const SealedState& state) const override {
    return std::make_shared<IndexState>(static_cast<const IndexState&>(state));
  }
  absl::Status Seal(SealedState& state, std::int64_t /*sealed_tokens*/,
                    std::span<const Block> blocks, Scratch& scratch) const override {
    return static_cast<IndexState&>(state).Append(blocks, scratch);
  }
  RowMask ReadBlock(const SealedState& state, std::int64_t block, float* keys,
                    float* values) const override {
    return static_cast<const IndexState&>(state).ReadBlock(block, keys, values);
  }

  bool prepares_seals() const override { return true; }
  bool PrepareSeal(const SealedState& state, Scratch& scratch) const override {
    return static_cast<const IndexState&>(state).PrepareBlock(scratch);
  }
  // Upkeep goes by sealed tokens; the newest block is open.
  std::int64_t UpkeepOperations(std::int64_t position, std::int64_t count) const override {
    return static_cast<std::int64_t>(std::min(
        IndexState::UpkeepOperations(BlockLayout(shape()), kBlockTokens * SealedBlocks(position),
                                     kBlockTokens * SealedBlocks(position + count)),
        0x1p58));
  }

  std::unique_ptr<AttendPlan> NewPlan() const override {
    const bool automatic = config().mode == KdeConfig::Mode::kAuto;
    return std::make_unique<IndexPlan>(
        shape(), config(), automatic ? ExactRule{kLeastAutoTokens, kMostAutoShare} : ExactRule{});
  }
  std::int64_t PlanBytes(std::int64_t tokens, std::int64_t queries,
                         std::int64_t top_k) const override {
    return IndexPlan::Bytes(shape(), tokens, queries, top_k);
  }

  std::int64_t fixed_bytes() const override {
    // Tokens in raw blocks count as tokens.
    return static_cast<std::int64_t>(sizeof(IndexState)) + Tail::Bytes(shape(), {}) +
           shape().kv_heads * ValueSpread::Bytes(shape().value_dim) +
           AuditRecord::Bytes(shape().kv_heads) + ShortSpanBytes();
  }
  // Of spans of 1,024 tokens: longer ones have less padding.
  std::int64_t bytes_per_token() const override {
    constexpr std::int64_t kTokens = 4 * kLeastLadderTokens;
    return (LadderBytes(kTokens) + kTokens - 1) / kTokens;
  }
  std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const override {
    return Tail::Bytes(shape(), {}) + ShortSpanBytes() +
           (count + kBlockTokens) * bytes_per_token() +
           IndexState::UpkeepBytes(BlockLayout(shape()), position, position + count);
  }
  // About the square root of the context, with the newest tokens.
  std::int64_t RowsRead(std::int64_t position) const override {
    return position <= kLeastAutoTokens ? RoundUp(position, kBlockTokens)
                                        : kLeastAutoTokens + position / kBlockTokens;
  }

 private:
  std::int64_t LadderBytes(std::int64_t tokens) const {
    return IndexSpan::Bytes(BlockLayout(shape()), {kLeastMainTokens, tokens});
  }
  // Of the shortest spans there are three at most, whose summaries are padding for the most part:
  // what they take beyond bytes_per_token.
  std::int64_t ShortSpanBytes() const {
    return 3 * std::max(LadderBytes(kLeastLadderTokens) - kLeastLadderTokens * bytes_per_token(),
                        std::int64_t{0});
  }
};

}  // namespace

std::unique_ptr<const Engine> MakeIndexEngine(const LayerShape& shape, const KdeConfig& config) {
  return std::make_unique<IndexEngine>(shape, config);
}

}  // namespace attnd::engine
