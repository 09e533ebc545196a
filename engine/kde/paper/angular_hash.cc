#include "engine/kde/paper/angular_hash.h"

#include <algorithm>

#include "engine/gemm.h"
#include "engine/random.h"

namespace attnd::engine {

static_assert(AngularHash::kBits % kGemmColumnMultiple == 0);

AngularHash::AngularHash(std::uint64_t seed, std::int64_t dim)
    : dim_(dim), directions_(dim * kBits) {
  NormalGenerator normal(seed);
  for (std::int64_t i = 0; i < dim * kBits; ++i) {
    directions_.data()[i] = static_cast<float>(normal.Next());
  }
}

void AngularHash::Ranks(Rows rows, std::uint32_t* ranks, Scratch& scratch) const {
  const Scratch::Frame frame(scratch);
  float* dense = scratch.Take(kGemmMaxRows * dim_);
  float* projections = scratch.Take(kGemmMaxRows * kBits);
  std::fill_n(dense, kGemmMaxRows * dim_, 0.0F);
  for (std::int64_t first = 0; first < rows.count; first += kGemmMaxRows) {
    const std::int64_t n = std::min(kGemmMaxRows, rows.count - first);
    for (std::int64_t r = 0; r < n; ++r) std::copy_n(rows.row(first + r), dim_, dense + r * dim_);
    GemmNN(GemmPaddedRows(n), kBits, dim_, dense, dim_, directions_.data(), kBits,
           /*accumulate=*/false, projections, kBits);
    for (std::int64_t r = 0; r < n; ++r) {
      std::uint32_t code = 0;
      for (std::int64_t b = 0; b < kBits; ++b) {
        code = 2 * code + (projections[r * kBits + b] > 0 ? 1 : 0);
      }
      ranks[first + r] = GrayRank(code);
    }
  }
}

}  // namespace attnd::engine
