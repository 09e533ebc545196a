// The pieces that a layer's sealed tokens lie in: raw blocks of 64 tokens in the order in which
// they came, and spans that an index has been built over. Each holds the only copy of its keys and
// values. Immutable once shared; any thread may read.
#ifndef ATTND_ENGINE_KDE_INDEX_INDEX_SPAN_H_
#define ATTND_ENGINE_KDE_INDEX_INDEX_SPAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/segment.h"
#include "engine/kde/index/head_index.h"
#include "engine/kde/index/upkeep_schedule.h"

namespace attnd::engine {

struct RawBlock {
  // Copies the block. Throws std::bad_alloc.
  RawBlock(const BlockLayout& layout, std::int64_t first_token, const Block& block);

  BlockView<float> view(const BlockLayout& layout, std::int64_t head) const {
    const float* keys = data.data() + head * layout.elements();
    return {keys, keys + layout.key_elements(), valid};
  }
  static std::int64_t Bytes(const BlockLayout& layout);

  const std::int64_t first;
  const RowMask valid;
  AlignedBuffer<float> data;  // [kv_heads] blocks of the layout
};

struct IndexSpan {
  std::int64_t bytes() const;
  static std::int64_t Bytes(const BlockLayout& layout, const SpanBounds& span);

  // Writes keys [64, H, d_k] and values [64, H, d_v] of the span's tokens from position `first` on,
  // a multiple of 64, and returns which are unmasked; rows of others are zeros. A key lies in as
  // many cache lines as it has components: 0.24 us per token and kv-head of d_k = d_v = 64 in a
  // context of 131,072 (Zen 4), where the exact engine takes 0.06.
  RowMask ReadBlock(const BlockLayout& layout, std::int64_t first, float* keys,
                    float* values) const;

  SpanBounds span;
  std::vector<std::unique_ptr<const HeadIndex>> heads;  // [kv_heads]
};

// The tokens of a span before it is built: spans, then raw blocks, in order and without gaps.
struct SpanInput {
  SpanBounds span;
  std::vector<std::shared_ptr<const IndexSpan>> spans;
  std::vector<std::shared_ptr<const RawBlock>> blocks;
  // Whose metric or table of errors the span shares; null: it makes its own.
  std::shared_ptr<const IndexSpan> lender;

  std::int64_t CountKeys() const;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_INDEX_SPAN_H_
