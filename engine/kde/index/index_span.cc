#include "engine/kde/index/index_span.h"

#include <algorithm>
#include <bit>

#include "engine/simd/transpose.h"

namespace attnd::engine {

RawBlock::RawBlock(const BlockLayout& layout, std::int64_t first_token, const Block& block)
    : first(first_token),
      valid(block.valid),
      data(AlignedBuffer<float>::Uninitialized(layout.kv_heads * layout.elements())) {
  const std::int64_t key_row = layout.kv_heads * layout.key_dim;
  const std::int64_t value_row = layout.kv_heads * layout.value_dim;
  for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
    float* stored = data.data() + head * layout.elements();
    TransposeKeys(block.keys + head * layout.key_dim, key_row, kBlockTokens, layout.key_dim,
                  stored);
    stored += layout.key_elements();
    for (std::int64_t token = 0; token < kBlockTokens; ++token) {
      std::copy_n(block.values + token * value_row + head * layout.value_dim, layout.value_dim,
                  stored);
      std::fill(stored + layout.value_dim, stored + layout.padded_value_dim, 0.0F);
      stored += layout.padded_value_dim;
    }
  }
}

std::int64_t RawBlock::Bytes(const BlockLayout& layout) {
  return static_cast<std::int64_t>(sizeof(RawBlock)) +
         layout.kv_heads * layout.elements() * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t IndexSpan::bytes() const {
  std::int64_t bytes = static_cast<std::int64_t>(sizeof(IndexSpan));
  for (const auto& head : heads) bytes += head->bytes();
  return bytes;
}

std::int64_t IndexSpan::Bytes(const BlockLayout& layout, const SpanBounds& span) {
  return static_cast<std::int64_t>(sizeof(IndexSpan)) +
         layout.kv_heads * HeadIndex::Bytes(layout, span.tokens, span.tokens, IsMainSpan(span));
}

RowMask IndexSpan::ReadBlock(const BlockLayout& layout, std::int64_t first, float* keys,
                             float* values) const {
  RowMask valid = 0;
  std::fill_n(keys, kBlockTokens * layout.kv_heads * layout.key_dim, 0.0F);
  std::fill_n(values, kBlockTokens * layout.kv_heads * layout.value_dim, 0.0F);
  for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
    const HeadIndex& index = *heads[static_cast<std::size_t>(head)];
    for (std::int64_t row = 0; row < kBlockTokens; ++row) {
      const std::int32_t place = index.place(first - span.first + row);
      if (place < 0) continue;
      valid |= RowMask{1} << row;
      const std::int64_t to = row * layout.kv_heads + head;
      ReadRow(layout, index.leaf(place / kBlockTokens), place % kBlockTokens,
              keys + to * layout.key_dim, values + to * layout.value_dim);
    }
  }
  return valid;
}

std::int64_t SpanInput::CountKeys() const {
  std::int64_t keys = 0;
  for (const auto& piece : spans) keys += piece->heads.front()->keys();
  for (const auto& block : blocks) keys += std::popcount(block->valid);
  return keys;
}

}  // namespace attnd::engine
