#include "engine/kde/value_spread.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

namespace attnd::engine {

ValueSpread::ValueSpread(const LayerShape& shape)
    : heads_(shape.kv_heads),
      value_dim_(shape.value_dim),
      sums_(static_cast<std::size_t>(2 * shape.kv_heads * shape.value_dim)) {}

std::int64_t ValueSpread::Bytes(const LayerShape& shape) {
  return 2 * shape.kv_heads * shape.value_dim * static_cast<std::int64_t>(sizeof(double));
}

void ValueSpread::Add(const Block& block) {
  tokens_ += std::popcount(block.valid);
  for (std::int64_t row = 0; row < kBlockTokens; ++row) {
    if (((block.valid >> row) & 1U) == 0) continue;
    const float* value = block.values + row * heads_ * value_dim_;
    for (std::int64_t head = 0; head < heads_; ++head) {
      double* sums = sums_.data() + 2 * head * value_dim_;
      double* squares = sums + value_dim_;
      for (std::int64_t c = 0; c < value_dim_; ++c) {
        const auto x = static_cast<double>(value[head * value_dim_ + c]);
        sums[c] += x;
        squares[c] += x * x;
      }
    }
  }
}

double ValueSpread::Of(std::int64_t kv_head) const {
  if (tokens_ == 0) return 0.0;
  const double* sums = sums_.data() + 2 * kv_head * value_dim_;
  const double* squares = sums + value_dim_;
  const auto n = static_cast<double>(tokens_);
  double square = 0.0;
  for (std::int64_t c = 0; c < value_dim_; ++c) {
    square += squares[c] / n - sums[c] / n * (sums[c] / n);
  }
  return std::sqrt(std::max(square, 0.0));
}

}  // namespace attnd::engine
