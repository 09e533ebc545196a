// The sealed state of mode CERTIFIED: keys and values as the exact engine keeps them
// (engine/exact/key_value_state.h), and beside each block its codes in 8 bits, made once when it is
// sealed and shared by all states that see it.
//
// Codes are relative to the block's mean key and mean value. They lie in segments as keys and
// values do, head by head, because they are read in order: a scan of 131,072 tokens took 4.0 ms
// with memory per block, and takes 1.6 (Zen 4, d = d_v = 100). Memory: (d_k + d_v + 12) bytes per
// token and kv-head beside 4 (d_k + d_v), and 4 (d_k + d_v) per block for the means.
//
// Thread safety: as that of KeyValueState.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_STATE_H_
#define ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_STATE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/segment.h"
#include "engine/kde/certified/certified_row.h"
#include "engine/kde/certified/key_codes.h"
#include "engine/kde/certified/value_codes.h"
#include "engine/kde/value_spread.h"

namespace attnd::engine {

// The codes of consecutive sealed blocks, of all kv-heads. Blocks are claimed, written and read as
// those of Segment (engine/exact/segment.h).
class CodedSegment {
 public:
  // Memory for `blocks` blocks of which `claimed` belong to the caller. Throws std::bad_alloc.
  CodedSegment(const BlockLayout& layout, std::int64_t blocks, std::int64_t claimed);
  CodedSegment(const CodedSegment&) = delete;
  CodedSegment& operator=(const CodedSegment&) = delete;

  bool Claim(std::int64_t from, std::int64_t to) {
    return claimed_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }

  // Encodes block `index` of `state` as number `offset`, which the caller has claimed.
  void Encode(const KeyValueState<float>& state, std::int64_t index, std::int64_t offset);

  KeyCodes keys(std::int64_t kv_head, std::int64_t offset) const {
    return keys_.block(kv_head * blocks_ + offset);
  }
  ValueCodes values(std::int64_t kv_head, std::int64_t offset) const {
    return values_.block(kv_head * blocks_ + offset);
  }

  // Of one block of all kv-heads.
  static std::int64_t BlockBytes(const BlockLayout& layout);

 private:
  const std::int64_t blocks_;
  AlignedBuffer<float> centres_;  // [kv_heads][blocks][d_k, padded d_v]
  CodedKeys keys_;                // [kv_heads][blocks]
  CodedValues values_;            // [kv_heads][blocks]
  std::atomic<std::int64_t> claimed_;
};

class CertifiedState final : public SealedState {
 public:
  explicit CertifiedState(const LayerShape& shape);
  // Shares keys, values and codes with `other`.
  CertifiedState(const CertifiedState& other) = default;
  CertifiedState& operator=(const CertifiedState&) = delete;

  std::int64_t bytes() const override;

  // Stores complete blocks after those that are there. RESOURCE_EXHAUSTED where memory runs out;
  // the state is then unusable.
  absl::Status Append(std::span<const Block> blocks);

  // Memory that `blocks` blocks of this shape take.
  std::int64_t CapacityBytes(std::int64_t blocks) const;

  std::int64_t blocks() const { return raw_.blocks(); }
  BlockView<float> raw(std::int64_t kv_head, std::int64_t index) const {
    return raw_.block(kv_head, index);
  }
  // Writes keys [64, H, d_k] and values [64, H, d_v] of block `index`.
  RowMask ReadBlock(std::int64_t index, float* keys, float* values) const {
    return raw_.ReadBlock(index, keys, values);
  }
  CertifiedBlock block(std::int64_t kv_head, std::int64_t index) const;
  // Root mean square of |v - mean v| over the unmasked sealed tokens; 0 where there are none.
  double Spread(std::int64_t head) const {
    return values_[static_cast<std::size_t>(head)].Spread();
  }

 private:
  // The segment at `place`, where block `index` goes, with `count` blocks claimed.
  CodedSegment& ClaimBlocks(BlockPlace place, std::int64_t index, std::int64_t count);
  std::int64_t CodeBytes(std::int64_t blocks) const;

  KeyValueState<float> raw_;
  std::int64_t full_segment_;  // in blocks
  std::vector<std::shared_ptr<CodedSegment>> segments_;
  std::vector<ValueSpread> values_;  // [kv_heads]
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_STATE_H_
