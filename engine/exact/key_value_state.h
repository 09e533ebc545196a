// The exact engine's sealed state: all keys and values of a layer's complete blocks, or, with a
// sliding window, of those that later queries can see.
//
// A state is a list of shared segments and a count, so that a copy is cheap: a million tokens are
// at most 1,000 pointers, which copy in about 10 microseconds. Append() changes the copy only,
// never a state that shares segments with it; see segment.h for how that is kept.
//
// With a window, segments that lie before it as a whole are let go; full segments then have at most
// a quarter of its blocks, so that what is kept of the first one and free in the last one adds half
// a window at most.
//
// Thread safety: a state that is no longer appended to may be read from any thread; different
// states may be read and appended to at the same time even where they share segments.
#ifndef ATTND_ENGINE_EXACT_KEY_VALUE_STATE_H_
#define ATTND_ENGINE_EXACT_KEY_VALUE_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/exact/segment.h"
#include "engine/exact/token_window.h"

namespace attnd::engine {

// One kv-head's part of a stored block.
template <typename Element>
struct BlockView {
  const Element* keys_t = nullptr;  // [d_k][64]
  const Element* values = nullptr;  // [64][padded d_v]
  RowMask valid = 0;
};

// Writes a row of such a part, as f32, to key [d_k] and value [d_v].
template <typename Element>
void ReadRow(const BlockLayout& layout, const BlockView<Element>& block, std::int64_t row,
             float* key, float* value);

// Writes all rows of a kv-head's part to keys [64, H, d_k] and values [64, H, d_v].
template <typename Element>
void ReadRows(const BlockLayout& layout, const BlockView<Element>& block, std::int64_t kv_head,
              float* keys, float* values);

template <typename Element>
class KeyValueState final : public SealedState {
 public:
  // Without rows; blocks before `first_block` have been let go (Engine::NewStateAt).
  explicit KeyValueState(const LayerShape& shape, TokenWindow window = {},
                         std::int64_t first_block = 0);

  // Shares the segments of `other`.
  KeyValueState(const KeyValueState& other) = default;
  KeyValueState& operator=(const KeyValueState&) = delete;

  const BlockLayout& layout() const { return layout_; }
  // Sealed so far, those that were let go included.
  std::int64_t blocks() const { return blocks_; }
  std::int64_t bytes() const override { return bytes_; }

  // Stores complete blocks after those that are there. RESOURCE_EXHAUSTED where memory runs out;
  // the state is then unusable.
  absl::Status Append(std::span<const Block> blocks);

  // The first block that is visible from position 64 * blocks() on.
  std::int64_t FirstKeptBlock() const;
  // Writes keys [64, H, d_k] and values [64, H, d_v] of block `index`, as block() requires it.
  RowMask ReadBlock(std::int64_t index, float* keys, float* values) const;

  // Memory of the segments that `blocks` blocks of this shape take, if none is let go.
  std::int64_t CapacityBytes(std::int64_t blocks) const;
  // With a window, the most memory that a state takes.
  std::int64_t WindowBytes() const;

  // Requires 0 <= kv_head < kv_heads, that the block has been sealed into this state or one that it
  // was copied from, and that it holds a token that is visible from position 64 * blocks() on.
  BlockView<Element> block(std::int64_t kv_head, std::int64_t index) const {
    const BlockPlace place = PlaceOfBlock(index, full_segment_);
    const Segment<Element>& segment =
        *segments_[static_cast<std::size_t>(place.segment - first_segment_)];
    const Element* keys = segment.block(kv_head, place.offset);
    return {keys, keys + layout_.key_elements(), segment.valid(place.offset)};
  }

 private:
  // The segment at `place`, with blocks [place.offset, place.offset + count) claimed.
  Segment<Element>& ClaimBlocks(BlockPlace place, std::int64_t count);
  void DropSegments();
  std::int64_t BlockBytes() const;

  BlockLayout layout_;
  TokenWindow window_;
  std::int64_t full_segment_;  // in blocks
  std::vector<std::shared_ptr<Segment<Element>>> segments_;
  std::int64_t first_segment_ = 0;  // number of segments_.front()
  std::int64_t blocks_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_KEY_VALUE_STATE_H_
