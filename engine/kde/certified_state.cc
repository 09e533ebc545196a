#include "engine/kde/certified_state.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"

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

CodedBlock::CodedBlock(const KeyValueState<float>& state, std::int64_t index)
    : centres_(state.layout().kv_heads *
               (state.layout().key_dim + state.layout().padded_value_dim)),
      keys_(state.layout().key_dim, state.layout().kv_heads),
      values_(state.layout().padded_value_dim, state.layout().kv_heads) {
  const BlockLayout& layout = state.layout();
  for (std::int64_t head = 0; head < layout.kv_heads; ++head) {
    const BlockView<float> block = state.block(head, index);
    float* key = centres_.data() + head * (layout.key_dim + layout.padded_value_dim);
    float* value = key + layout.key_dim;
    for (std::int64_t c = 0; c < layout.key_dim; ++c) {
      key[c] = MeanOfValid(block.keys_t + c * kBlockTokens, 1, block.valid);
    }
    for (std::int64_t c = 0; c < layout.value_dim; ++c) {
      value[c] = MeanOfValid(block.values + c, layout.padded_value_dim, block.valid);
    }
    keys_.Encode(head, block, key);
    values_.Encode(head, block, value);
  }
}

std::int64_t CodedBlock::Bytes(const BlockLayout& layout) {
  const std::int64_t head =
      CodedKeys::BlockBytes(layout.key_dim) + CodedValues::BlockBytes(layout.padded_value_dim) +
      static_cast<std::int64_t>(sizeof(float)) * (layout.key_dim + layout.padded_value_dim);
  return static_cast<std::int64_t>(sizeof(CodedBlock)) + layout.kv_heads * head;
}

std::int64_t CertifiedState::bytes() const {
  return static_cast<std::int64_t>(sizeof(CertifiedState)) + raw_.bytes() +
         raw_.blocks() * CodedBlock::Bytes(raw_.layout());
}

CertifiedBlock CertifiedState::block(std::int64_t kv_head, std::int64_t index) const {
  const auto group = static_cast<std::size_t>(index / kGroupBlocks);
  const auto place = static_cast<std::size_t>(index % kGroupBlocks);
  const CodedBlock& coded = group < groups_.size() ? *(*groups_[group])[place] : *newest_[place];
  return {raw_.block(kv_head, index), coded.keys(kv_head), coded.values(kv_head)};
}

absl::Status CertifiedState::Append(std::span<const Block> blocks) {
  const std::int64_t first = raw_.blocks();
  if (absl::Status status = raw_.Append(blocks); !status.ok()) return status;
  try {
    for (std::int64_t index = first; index < raw_.blocks(); ++index) {
      newest_.push_back(std::make_shared<const CodedBlock>(raw_, index));
      if (std::ssize(newest_) == kGroupBlocks) {
        groups_.push_back(std::make_shared<const Group>(std::move(newest_)));
        newest_ = {};
      }
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the codes of keys and values after token ",
                     kBlockTokens * (std::ssize(groups_) * kGroupBlocks + std::ssize(newest_))));
  }
  for (const Block& block : blocks) spread_.Add(block);
  return absl::OkStatus();
}

}  // namespace attnd::engine
