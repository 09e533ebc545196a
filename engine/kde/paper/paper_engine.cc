#include <cstdint>
#include <memory>
#include <span>

#include "engine/exact/key_value_state.h"
#include "engine/exact/segment.h"
#include "engine/kde/kde_mode_engine.h"
#include "engine/kde/paper/paper_plan.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

class PaperEngine final : public KdeModeEngine {
 public:
  using KdeModeEngine::KdeModeEngine;

  std::shared_ptr<SealedState> NewState() const override {
    return std::make_shared<KeyValueState<float>>(shape());
  }
  std::shared_ptr<SealedState> Clone(const SealedState& state) const override {
    return std::make_shared<KeyValueState<float>>(static_cast<const KeyValueState<float>&>(state));
  }
  absl::Status Seal(SealedState& state, std::int64_t /*sealed_tokens*/,
                    std::span<const Block> blocks, Scratch& /*scratch*/) const override {
    return static_cast<KeyValueState<float>&>(state).Append(blocks);
  }
  RowMask ReadBlock(const SealedState& state, std::int64_t block, float* keys,
                    float* values) const override {
    return static_cast<const KeyValueState<float>&>(state).ReadBlock(block, keys, values);
  }

  std::unique_ptr<AttendPlan> NewPlan() const override {
    return std::make_unique<PaperPlan>(shape(), config());
  }
  std::int64_t PlanBytes(std::int64_t tokens, std::int64_t queries,
                         std::int64_t top_k) const override {
    return PaperPlan::Bytes(shape(), tokens, queries, top_k);
  }

  std::int64_t fixed_bytes() const override {
    return static_cast<std::int64_t>(sizeof(KeyValueState<float>)) + Tail::Bytes(shape(), {});
  }
  std::int64_t bytes_per_token() const override {
    const BlockLayout layout(shape());
    const std::int64_t block =
        layout.kv_heads * layout.elements() * static_cast<std::int64_t>(sizeof(float)) +
        static_cast<std::int64_t>(sizeof(RowMask));
    return (block + kBlockTokens - 1) / kBlockTokens;
  }
  // Segments are allocated whole, and a sealed block waits for its successor.
  std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const override {
    const KeyValueState<float> state(shape());
    return Tail::Bytes(shape(), {}) + state.CapacityBytes(SealedBlocks(position + count)) -
           state.CapacityBytes(SealedBlocks(position));
  }
  // What a batch of many queries does not: of few, most of the work is to hash and pack all keys.
  std::int64_t RowsRead(std::int64_t position) const override {
    return RoundUp(position, kBlockTokens);
  }
};

}  // namespace

std::unique_ptr<const Engine> MakePaperEngine(const LayerShape& shape, const KdeConfig& config) {
  return std::make_unique<PaperEngine>(shape, config);
}

}  // namespace attnd::engine
