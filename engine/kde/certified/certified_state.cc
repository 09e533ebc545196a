#include "engine/kde/certified/certified_state.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <new>

#include "absl/strings/str_cat.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

// The mean of the valid ones of 64 numbers that begin `stride` floats apart; 0 where none is.
float MeanOfValid(const float* numbers, std::int64_t stride, RowMask valid) {
  double sum = 0.0;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    if (((valid >> j) & 1U) != 0) sum += static_cast<double>(numbers[j * stride]);
  }
  return static_cast<float>(sum / static_cast<double>(std::max(std::popcount(valid), 1)));
}

}  // namespace

CodedSegment::CodedSegment(const BlockLayout& layout, std::int64_t blocks, std::int64_t claimed)
    : blocks_(blocks),
      centres_(layout.kv_heads * blocks * (layout.key_dim + layout.padded_value_dim)),
      keys_(layout.key_dim, layout.kv_heads * blocks),
      values_(layout.padded_value_dim, layout.kv_heads * blocks),
      claimed_(claimed) {}

void CodedSegment::Encode(const KeyValueState<float>& state, std::int64_t index,
                          std::int64_t offset) {
  const BlockLayout& layout = state.layout();
  for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
    const BlockView<float> block = state.block(head, index);
    const std::int64_t number = head * blocks_ + offset;
    float* key = centres_.data() + number * (layout.key_dim + layout.padded_value_dim);
    float* value = key + layout.key_dim;
    for (std::int64_t c = 0; c < layout.key_dim; ++c) {
      key[c] = MeanOfValid(block.keys_t + c * kBlockTokens, 1, block.valid);
    }
    for (std::int64_t c = 0; c < layout.value_dim; ++c) {
      value[c] = MeanOfValid(block.values + c, layout.padded_value_dim, block.valid);
    }
    keys_.Encode(number, block, key);
    values_.Encode(number, block, value);
  }
}

std::int64_t CodedSegment::BlockBytes(const BlockLayout& layout) {
  return layout.kv_heads *
         (CodedKeys::BlockBytes(layout.key_dim) + CodedValues::BlockBytes(layout.padded_value_dim) +
          static_cast<std::int64_t>(sizeof(float)) * (layout.key_dim + layout.padded_value_dim));
}

CertifiedState::CertifiedState(const LayerShape& shape)
    : raw_(shape),
      full_segment_(FullSegmentBlocks(CodedSegment::BlockBytes(raw_.layout()))),
      values_(static_cast<std::size_t>(shape.kv_heads), ValueSpread(shape.value_dim)) {}

std::int64_t CertifiedState::CodeBytes(std::int64_t blocks) const {
  if (blocks == 0) return 0;
  const std::int64_t capacity =
      blocks >= full_segment_
          ? RoundUp(blocks, full_segment_)
          : static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(blocks)));
  return capacity * CodedSegment::BlockBytes(raw_.layout()) +
         PlaceOfBlock(blocks - 1, full_segment_).segment *
             static_cast<std::int64_t>(sizeof(CodedSegment));
}

std::int64_t CertifiedState::bytes() const {
  return static_cast<std::int64_t>(sizeof(CertifiedState)) + raw_.bytes() + CodeBytes(blocks());
}

std::int64_t CertifiedState::CapacityBytes(std::int64_t blocks) const {
  return raw_.CapacityBytes(blocks) + CodeBytes(blocks);
}

CertifiedBlock CertifiedState::block(std::int64_t kv_head, std::int64_t index) const {
  const BlockPlace place = PlaceOfBlock(index, full_segment_);
  const CodedSegment& coded = *segments_[static_cast<std::size_t>(place.segment)];
  return {raw_.block(kv_head, index), coded.keys(kv_head, place.offset),
          coded.values(kv_head, place.offset)};
}

CodedSegment& CertifiedState::ClaimBlocks(BlockPlace place, std::int64_t index,
                                          std::int64_t count) {
  const auto segment = static_cast<std::size_t>(place.segment);
  const std::int64_t end = place.offset + count;
  const auto make = [&] {
    return std::make_shared<CodedSegment>(raw_.layout(),
                                          SegmentBlocks(place.segment, full_segment_), end);
  };
  if (segment == segments_.size()) {
    segments_.push_back(make());
  } else if (!segments_[segment]->Claim(place.offset, end)) {
    const std::shared_ptr<CodedSegment> own = make();
    for (std::int64_t i = 0; i < place.offset; ++i) own->Encode(raw_, index - place.offset + i, i);
    segments_[segment] = own;
  }
  return *segments_[segment];
}

absl::Status CertifiedState::Append(std::span<const Block> blocks) {
  std::int64_t index = raw_.blocks();
  if (absl::Status status = raw_.Append(blocks); !status.ok()) return status;
  try {
    while (index < raw_.blocks()) {
      const BlockPlace place = PlaceOfBlock(index, full_segment_);
      const std::int64_t count = std::min(
          raw_.blocks() - index, SegmentBlocks(place.segment, full_segment_) - place.offset);
      CodedSegment& segment = ClaimBlocks(place, index, count);
      for (std::int64_t i = 0; i < count; ++i) segment.Encode(raw_, index + i, place.offset + i);
      index += count;
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for the codes of keys and values after token ", kBlockTokens * index));
  }
  for (const Block& block : blocks) AddValues(block, values_);
  return absl::OkStatus();
}

}  // namespace attnd::engine
