#include "engine/kde/value_moments.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

namespace attnd::engine {

void ValueMoments::Add(const float* rows, std::int64_t stride, RowMask valid) {
  count_ += std::popcount(valid);
  // Eight components at a time, whose sums stay in registers.
  constexpr std::size_t kWidth = 8;
  for (std::size_t first = 0; first < sums_.size(); first += kWidth) {
    const std::size_t width = std::min(kWidth, sums_.size() - first);
    std::array<double, kWidth> sums{};
    std::array<double, kWidth> squares{};
    for (RowMask rest = valid; rest != 0; rest &= rest - 1) {
      const float* row = rows + std::countr_zero(rest) * stride + first;
      for (std::size_t i = 0; i < width; ++i) {
        const auto x = static_cast<double>(row[i]);
        sums[i] += x;
        squares[i] += x * x;
      }
    }
    for (std::size_t i = 0; i < width; ++i) {
      sums_[first + i] += sums[i];
      squares_ += squares[i];
    }
  }
}

double ValueMoments::Spread() const {
  if (count_ == 0) return 0.0;
  const auto n = static_cast<double>(count_);
  double square = squares_ / n;
  for (const double sum : sums_) square -= sum / n * (sum / n);
  return std::sqrt(std::max(square, 0.0));
}

}  // namespace attnd::engine
