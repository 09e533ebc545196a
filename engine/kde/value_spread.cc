#include "engine/kde/value_spread.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "engine/simd/leaf_sums.h"

namespace attnd::engine {

void ValueSpread::Add(const float* rows, std::int64_t stride, RowMask valid) {
  count_ += std::popcount(valid);
  constexpr std::size_t kWidth = 64;
  for (std::size_t first = 0; first < sums_.size(); first += kWidth) {
    const std::size_t width = std::min(kWidth, sums_.size() - first);
    std::array<double, kWidth> squares{};
    AddRowsAndSquares(rows + first, stride, static_cast<std::int64_t>(width), valid,
                      sums_.data() + first, squares.data());
    for (std::size_t i = 0; i < width; ++i) squares_ += squares[i];
  }
}

double ValueSpread::Spread() const {
  if (count_ == 0) return 0.0;
  const auto n = static_cast<double>(count_);
  double square = squares_ / n;
  for (const double sum : sums_) square -= sum / n * (sum / n);
  return std::sqrt(std::max(square, 0.0));
}

void AddValues(const Block& block, std::vector<ValueSpread>& spreads) {
  const auto heads = static_cast<std::int64_t>(spreads.size());
  for (std::int64_t head = 0; head < heads; ++head) {
    ValueSpread& spread = spreads[static_cast<std::size_t>(head)];
    spread.Add(block.values + head * spread.value_dim(), heads * spread.value_dim(), block.valid);
  }
}

}  // namespace attnd::engine
