#include "engine/exact/key_value_state.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/simd/convert.h"
#include "engine/simd/transpose.h"

namespace attnd::engine {
namespace {

void StoreRow(const float* row, std::int64_t count, float* stored) {
  std::copy_n(row, count, stored);
}

// Rows arrive rounded, so that nothing can overflow here.
void StoreRow(const float* row, std::int64_t count, std::uint16_t* stored) {
  F32ToBf16(row, stored, count);
}

float AsF32(float stored) { return stored; }

float AsF32(std::uint16_t stored) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(stored) << 16);
}

template <typename Element>
void StoreBlock(const BlockLayout& layout, const Block& block, std::int64_t offset,
                Segment<Element>& segment) {
  const std::int64_t key_row = layout.kv_heads * layout.key_dim;
  const std::int64_t value_row = layout.kv_heads * layout.value_dim;
  for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
    Element* stored = segment.block(head, offset);
    TransposeKeys(block.keys + head * layout.key_dim, key_row, kBlockTokens, layout.key_dim,
                  stored);
    stored += layout.key_elements();
    for (std::int64_t token = 0; token < kBlockTokens; ++token) {
      StoreRow(block.values + token * value_row + head * layout.value_dim, layout.value_dim,
               stored);
      std::fill(stored + layout.value_dim, stored + layout.padded_value_dim, Element{0});
      stored += layout.padded_value_dim;
    }
  }
  segment.valid(offset) = block.valid;
}

}  // namespace

template <typename Element>
void ReadRow(const BlockLayout& layout, const BlockView<Element>& block, std::int64_t row,
             float* key, float* value) {
  for (std::int64_t i = 0; i < layout.key_dim; ++i) {
    key[i] = AsF32(block.keys_t[i * kBlockTokens + row]);
  }
  const Element* stored = block.values + row * layout.padded_value_dim;
  for (std::int64_t i = 0; i < layout.value_dim; ++i) value[i] = AsF32(stored[i]);
}

template <typename Element>
void ReadRows(const BlockLayout& layout, const BlockView<Element>& block, std::int64_t kv_head,
              float* keys, float* values) {
  for (std::int64_t row = 0; row < kBlockTokens; ++row) {
    const std::int64_t place = row * layout.kv_heads + kv_head;
    ReadRow(layout, block, row, keys + place * layout.key_dim, values + place * layout.value_dim);
  }
}

template <typename Element>
KeyValueState<Element>::KeyValueState(const LayerShape& shape, TokenWindow window,
                                      std::int64_t first_block)
    : layout_(shape),
      window_(window),
      full_segment_(FullSegmentBlocks(BlockBytes())),
      blocks_(first_block) {
  const std::int64_t most = std::max(window.blocks() / 4, std::int64_t{1});
  while (window.tokens > 0 && full_segment_ > most) full_segment_ /= 2;
  first_segment_ = PlaceOfBlock(first_block, full_segment_).segment;
}

// Of keys and values of all kv-heads.
template <typename Element>
std::int64_t KeyValueState<Element>::BlockBytes() const {
  return layout_.kv_heads * layout_.elements() * static_cast<std::int64_t>(sizeof(Element));
}

template <typename Element>
Segment<Element>& KeyValueState<Element>::ClaimBlocks(BlockPlace place, std::int64_t count) {
  const auto index = static_cast<std::size_t>(place.segment - first_segment_);
  const std::int64_t end = place.offset + count;
  if (index == segments_.size()) {
    segments_.push_back(std::make_shared<Segment<Element>>(
        layout_, SegmentBlocks(place.segment, full_segment_), end));
    bytes_ += segments_.back()->bytes();
  } else if (!segments_[index]->Claim(place.offset, end)) {
    segments_[index] =
        std::make_shared<Segment<Element>>(layout_, *segments_[index], place.offset, end);
  }
  return *segments_[index];
}

template <typename Element>
std::int64_t KeyValueState<Element>::CapacityBytes(std::int64_t blocks) const {
  const std::int64_t capacity =
      blocks >= full_segment_
          ? RoundUp(blocks, full_segment_)
          : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(blocks)));
  const std::int64_t block_bytes = BlockBytes() + static_cast<std::int64_t>(sizeof(RowMask));
  return blocks == 0 ? 0 : capacity * block_bytes;
}

// Before a segment is let go the first and the last one hold a block of the window each.
template <typename Element>
std::int64_t KeyValueState<Element>::WindowBytes() const {
  return CapacityBytes(window_.blocks() + 2 * full_segment_);
}

template <typename Element>
void KeyValueState<Element>::DropSegments() {
  const std::int64_t keep = PlaceOfBlock(FirstKeptBlock(), full_segment_).segment;
  if (keep <= first_segment_) return;
  const auto count = std::min(static_cast<std::size_t>(keep - first_segment_), segments_.size());
  for (std::size_t i = 0; i < count; ++i) bytes_ -= segments_[i]->bytes();
  segments_.erase(segments_.begin(), segments_.begin() + static_cast<std::ptrdiff_t>(count));
  first_segment_ += static_cast<std::int64_t>(count);
}

template <typename Element>
absl::Status KeyValueState<Element>::Append(std::span<const Block> blocks) {
  try {
    while (!blocks.empty()) {
      const BlockPlace place = PlaceOfBlock(blocks_, full_segment_);
      const std::int64_t count =
          std::min(static_cast<std::int64_t>(blocks.size()),
                   SegmentBlocks(place.segment, full_segment_) - place.offset);
      Segment<Element>& segment = ClaimBlocks(place, count);
      for (std::int64_t i = 0; i < count; ++i) {
        StoreBlock(layout_, blocks[static_cast<std::size_t>(i)], place.offset + i, segment);
      }
      blocks_ += count;
      blocks = blocks.subspan(static_cast<std::size_t>(count));
      DropSegments();
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a segment of keys and values after token ",
                     blocks_ * kBlockTokens, " (the layer holds ", bytes_, " bytes)"));
  }
  return absl::OkStatus();
}

template <typename Element>
std::int64_t KeyValueState<Element>::FirstKeptBlock() const {
  return window_.First(blocks_ * kBlockTokens) / kBlockTokens;
}

template <typename Element>
RowMask KeyValueState<Element>::ReadBlock(std::int64_t index, float* keys, float* values) const {
  for (std::int64_t head = 0; head < layout_.kv_heads; ++head) {
    ReadRows(layout_, block(head, index), head, keys, values);
  }
  return block(0, index).valid;
}

template void ReadRow(const BlockLayout&, const BlockView<float>&, std::int64_t, float*, float*);
template void ReadRows(const BlockLayout&, const BlockView<float>&, std::int64_t, float*, float*);
template class KeyValueState<float>;
template class KeyValueState<std::uint16_t>;

}  // namespace attnd::engine
