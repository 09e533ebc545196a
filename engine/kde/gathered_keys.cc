#include "engine/kde/gathered_keys.h"

#include <algorithm>

#include "engine/block.h"

namespace attnd::engine {

void GatheredKeys::Reset(std::int64_t key_dim, std::int64_t padded_value_dim) {
  if (key_dim_ != key_dim || padded_value_dim_ != padded_value_dim) {
    memory_ = AlignedBuffer<float>(kBlockTokens * (key_dim + padded_value_dim));
    key_dim_ = key_dim;
    padded_value_dim_ = padded_value_dim;
  }
  count_ = 0;
}

void GatheredKeys::Add(const BlockView<float>& from, std::int64_t row) {
  float* keys_t = memory_.data() + count_;
  for (std::int64_t i = 0; i < key_dim_; ++i) {
    keys_t[i * kBlockTokens] = from.keys_t[i * kBlockTokens + row];
  }
  std::copy_n(from.values + row * padded_value_dim_, padded_value_dim_,
              memory_.data() + kBlockTokens * key_dim_ + count_ * padded_value_dim_);
  ++count_;
}

void GatheredKeys::Prefetch(const BlockView<float>& from, std::int64_t row) const {
  for (std::int64_t i = 0; i < key_dim_; ++i) {
    __builtin_prefetch(from.keys_t + i * kBlockTokens + row, 0, 2);
  }
  for (std::int64_t c = 0; c < padded_value_dim_; c += 16) {
    __builtin_prefetch(from.values + row * padded_value_dim_ + c, 0, 2);
  }
}

BlockView<float> GatheredKeys::block() const {
  return {memory_.data(), memory_.data() + kBlockTokens * key_dim_, FirstRows(count_)};
}

}  // namespace attnd::engine
