#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/exact/segment.h"
#include "engine/kde/certified/certified_plan.h"
#include "engine/kde/certified/certified_state.h"
#include "engine/kde/kde_mode_engine.h"
#include "engine/kde/value_spread.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

class CertifiedEngine final : public KdeModeEngine {
 public:
  using KdeModeEngine::KdeModeEngine;

  std::shared_ptr<SealedState> NewState() const override {
    return std::make_shared<CertifiedState>(shape());
  }
  std::shared_ptr<SealedState> Clone(const SealedState& state) const override {
    return std::make_shared<CertifiedState>(static_cast<const CertifiedState&>(state));
  }
  absl::Status Seal(SealedState& state, std::int64_t /*sealed_tokens*/,
                    std::span<const Block> blocks, Scratch& /*scratch*/) const override {
    return static_cast<CertifiedState&>(state).Append(blocks);
  }
  RowMask ReadBlock(const SealedState& state, std::int64_t block, float* keys,
                    float* values) const override {
    return static_cast<const CertifiedState&>(state).ReadBlock(block, keys, values);
  }

  std::unique_ptr<AttendPlan> NewPlan() const override {
    return std::make_unique<CertifiedPlan>(shape(), config());
  }
  std::int64_t PlanBytes(std::int64_t tokens, std::int64_t queries,
                         std::int64_t top_k) const override {
    return CertifiedPlan::Bytes(shape(), tokens, queries, top_k);
  }

  std::int64_t fixed_bytes() const override {
    return static_cast<std::int64_t>(sizeof(CertifiedState)) +
           shape().kv_heads * ValueSpread::Bytes(shape().value_dim) + Tail::Bytes(shape(), {});
  }
  std::int64_t bytes_per_token() const override {
    const BlockLayout layout(shape());
    const std::int64_t raw =
        layout.kv_heads * layout.elements() * static_cast<std::int64_t>(sizeof(float)) +
        static_cast<std::int64_t>(sizeof(RowMask));
    return (raw + CodedSegment::BlockBytes(layout) + kBlockTokens - 1) / kBlockTokens;
  }
  // Segments are allocated whole, and a sealed block waits for its successor.
  std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const override {
    const CertifiedState state(shape());
    return Tail::Bytes(shape(), {}) + state.CapacityBytes(SealedBlocks(position + count)) -
           state.CapacityBytes(SealedBlocks(position));
  }
  // A scan reads a quarter of a key's and a value's bytes; gathered keys and values come to about
  // 1,024 rows.
  std::int64_t RowsRead(std::int64_t position) const override {
    constexpr std::int64_t kGatheredRows = 1024;
    const std::int64_t tokens = RoundUp(position, kBlockTokens);
    return EvaluatesAll(config().accuracy, tokens) ? tokens
                                                   : std::min(tokens, kGatheredRows + tokens / 4);
  }
};

}  // namespace

std::unique_ptr<const Engine> MakeCertifiedEngine(const LayerShape& shape,
                                                  const KdeConfig& config) {
  return std::make_unique<CertifiedEngine>(shape, config);
}

}  // namespace attnd::engine
