// The sealed state of mode CERTIFIED: keys and values as the exact engine keeps them
// (engine/exact/key_value_state.h), and beside each block its codes in 8 bits, made once when it is
// sealed and shared by all states that see it.
//
// Codes are relative to the block's mean key and mean value. A copy costs a pointer per 64 blocks,
// and up to 64 for the newest. Memory: (d_k + d_v + 12) bytes per token and kv-head beside 4 (d_k +
// d_v), and 4 (d_k + d_v) per block for the means.
//
// Thread safety: as that of KeyValueState.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_STATE_H_
#define ATTND_ENGINE_KDE_CERTIFIED_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/exact/key_value_state.h"
#include "engine/kde/certified_row.h"
#include "engine/kde/key_codes.h"
#include "engine/kde/value_codes.h"
#include "engine/kde/value_spread.h"

namespace attnd::engine {

// The codes of one sealed block, of all kv-heads. Immutable once made; neither copied nor moved,
// because codes point to their centres.
class CodedBlock {
 public:
  // Of block `index` of `state`. Throws std::bad_alloc.
  CodedBlock(const KeyValueState<float>& state, std::int64_t index);
  CodedBlock(const CodedBlock&) = delete;
  CodedBlock& operator=(const CodedBlock&) = delete;

  KeyCodes keys(std::int64_t kv_head) const { return keys_.block(kv_head); }
  ValueCodes values(std::int64_t kv_head) const { return values_.block(kv_head); }

  static std::int64_t Bytes(const BlockLayout& layout);

 private:
  AlignedBuffer<float> centres_;  // [kv_heads][d_k, padded d_v]
  CodedKeys keys_;                // one block per kv-head
  CodedValues values_;
};

class CertifiedState final : public SealedState {
 public:
  explicit CertifiedState(const LayerShape& shape) : raw_(shape), spread_(shape) {}
  CertifiedState(const CertifiedState& other) = default;
  CertifiedState& operator=(const CertifiedState&) = delete;

  std::int64_t bytes() const override;

  // Stores complete blocks after those that are there. RESOURCE_EXHAUSTED where memory runs out;
  // the state is then unusable.
  absl::Status Append(std::span<const Block> blocks);

  std::int64_t blocks() const { return raw_.blocks(); }
  BlockView<float> raw(std::int64_t kv_head, std::int64_t index) const {
    return raw_.block(kv_head, index);
  }
  CertifiedBlock block(std::int64_t kv_head, std::int64_t index) const;
  const ValueSpread& spread() const { return spread_; }

 private:
  static constexpr std::int64_t kGroupBlocks = 64;
  using Group = std::vector<std::shared_ptr<const CodedBlock>>;

  KeyValueState<float> raw_;
  std::vector<std::shared_ptr<const Group>> groups_;  // of kGroupBlocks
  Group newest_;                                      // fewer
  ValueSpread spread_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_STATE_H_
