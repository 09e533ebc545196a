// The memory in which the exact engine keeps sealed blocks, shared between the states that see
// them.
//
// A layer's blocks lie in segments of 1, 1, 2, 4, 8, ... blocks up to a full segment, and then in
// full segments; which block lies where depends on its index and the layer's shape alone. A full
// segment is the smallest that fills a large page, so that a short layer stays small and a long one
// is read from large pages: one query over 131,072 tokens reads at 25 GB/s from small pages and at
// 33 from large ones (Zen 4), and touching new memory costs 60 us instead of 420 per MB. Within a
// segment each kv-head has its blocks one after the other.
//
// Sharing. A block is written once, before a state that shows it is published, and never again; a
// reader touches only blocks below its state's count. So readers need no lock. Writers must Claim()
// the blocks that they are about to write: of two states that extend the same segment from the same
// count, one gets the blocks and the other has to copy the segment's beginning. A claim is never
// given back, so a draft that is thrown away after sealing costs its successor one such copy.
#ifndef ATTND_ENGINE_EXACT_SEGMENT_H_
#define ATTND_ENGINE_EXACT_SEGMENT_H_

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/tensor.h"

namespace attnd::engine {

// One kv-head's part of a block: keys transposed [d_k][64], then values [64][padded d_v]. The
// padding makes the values an operand of GemmNN and is zero.
struct BlockLayout {
  explicit BlockLayout(const LayerShape& shape);

  std::int64_t key_elements() const { return key_dim * kBlockTokens; }
  std::int64_t elements() const { return key_elements() + kBlockTokens * padded_value_dim; }

  std::int64_t kv_heads;
  std::int64_t key_dim;
  std::int64_t value_dim;
  std::int64_t padded_value_dim;
};

// Where a block lies.
struct BlockPlace {
  std::int64_t segment = 0;
  std::int64_t offset = 0;  // in blocks, within the segment
};

inline constexpr std::int64_t kLargePageBytes = 2 << 20;
inline constexpr std::int64_t kMinFullSegmentBlocks = 16;
inline constexpr std::int64_t kMaxFullSegmentBlocks = 256;

// How many blocks of `block_bytes` (all kv-heads) a full segment has: a power of two.
constexpr std::int64_t FullSegmentBlocks(std::int64_t block_bytes) {
  std::int64_t blocks = kMinFullSegmentBlocks;
  while (blocks < kMaxFullSegmentBlocks && blocks * block_bytes < kLargePageBytes) blocks *= 2;
  return blocks;
}

// The number of binary digits of `value`, at least 0.
constexpr std::int64_t BitWidth(std::int64_t value) {
  return static_cast<std::int64_t>(std::bit_width(static_cast<std::uint64_t>(value)));
}

// `full`: the blocks of a full segment.
constexpr BlockPlace PlaceOfBlock(std::int64_t block, std::int64_t full) {
  if (block >= full) return {BitWidth(full) - 1 + block / full, block % full};
  const std::int64_t width = BitWidth(block);
  return {width, width == 0 ? 0 : block - (std::int64_t{1} << (width - 1))};
}

constexpr std::int64_t SegmentBlocks(std::int64_t segment, std::int64_t full) {
  if (segment == 0) return 1;
  return segment < BitWidth(full) ? std::int64_t{1} << (segment - 1) : full;
}

// Element: float, or std::uint16_t for the bit patterns of bfloat16.
template <typename Element>
class Segment {
 public:
  // Memory for `blocks` blocks of which `claimed` belong to the caller. Throws std::bad_alloc.
  Segment(const BlockLayout& layout, std::int64_t blocks, std::int64_t claimed);

  // As above, with a copy of the first `count` blocks of `other`.
  Segment(const BlockLayout& layout, const Segment& other, std::int64_t count,
          std::int64_t claimed);

  // Takes blocks [from, to) for the caller to write. False if another writer has taken blocks from
  // `from` on.
  bool Claim(std::int64_t from, std::int64_t to) {
    return claimed_.compare_exchange_strong(from, to, std::memory_order_acq_rel);
  }

  Element* block(std::int64_t kv_head, std::int64_t offset) {
    return data_.get() + (kv_head * blocks_ + offset) * block_elements_;
  }
  const Element* block(std::int64_t kv_head, std::int64_t offset) const {
    return data_.get() + (kv_head * blocks_ + offset) * block_elements_;
  }

  RowMask& valid(std::int64_t offset) { return valid_.data()[offset]; }
  RowMask valid(std::int64_t offset) const { return valid_.data()[offset]; }

  std::int64_t bytes() const { return data_bytes_ + valid_.bytes(); }

 private:
  struct Free {
    void operator()(Element* p) const { std::free(p); }
  };

  const std::int64_t blocks_;
  const std::int64_t block_elements_;
  const std::int64_t data_bytes_;
  std::unique_ptr<Element, Free> data_;  // [kv_heads][blocks][block elements]
  AlignedBuffer<RowMask> valid_;
  std::atomic<std::int64_t> claimed_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_SEGMENT_H_
