#include "engine/exact/attend_block.h"

#include <cstdint>

#include "engine/gemm.h"
#include "engine/simd/convert.h"
#include "engine/simd/one_query.h"
#include "engine/simd/softmax.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kFewRows = 12;

// From scores to weights; rescales what was summed before.
void ToWeights(const VisibleKeys& visible, std::int64_t position, const TileWork& work) {
  const SoftmaxSums& sums = work.sums;
  if (work.top != nullptr) {
    work.top->OfferBlock(work.scores, work.rows, visible.rows, visible.stride, position);
  }
  OnlineSoftmaxBlock(work.scores, work.rows, visible.rows, visible.stride, sums.max, sums.sum,
                     work.corrections);
  RescaleRows(sums.acc, work.rows, sums.padded_value_dim, work.corrections);
}

// The first row brings the next block into the cache, the others find this one there.
template <typename Element>
void AttendRowByRow(const BlockView<Element>& block, const BlockView<Element>& next,
                    const VisibleKeys& visible, std::int64_t position, const TileWork& work) {
  for (std::int64_t r = 0; r < work.rows; ++r) {
    ScoresOneQuery(work.queries + r * work.key_dim, work.key_dim, block.keys_t,
                   work.scores + r * kBlockTokens, r == 0 ? next.keys_t : nullptr);
  }
  ToWeights(visible, position, work);
  const std::int64_t columns = work.sums.padded_value_dim;
  for (std::int64_t r = 0; r < work.rows; ++r) {
    WeightedSumOneQuery(work.scores + r * kBlockTokens, block.values, columns,
                        work.sums.acc + r * columns, r == 0 ? next.values : nullptr);
  }
}

// The row count of the next product when `rows` rows are left: the largest bucket that would be
// filled to more than three quarters. Products of 16 rows cost 0.11 us a row, of 64 or 192 rows
// 0.09 us (Zen 4, 64 x 64), so that cutting a tile costs less than padding it.
std::int64_t ProductRows(std::int64_t rows) {
  std::int64_t chosen = kGemmRowBuckets[0];
  for (const std::int64_t bucket : kGemmRowBuckets) {
    if (4 * rows > 3 * bucket) chosen = bucket;
  }
  return chosen;
}

void AttendTile(const BlockView<float>& block, const VisibleKeys& visible, std::int64_t position,
                const TileWork& work) {
  const std::int64_t columns = work.sums.padded_value_dim;
  TileProduct(work.rows, kBlockTokens, work.key_dim, work.queries, work.key_dim, block.keys_t,
              kBlockTokens, /*accumulate=*/false, work.scores, kBlockTokens);
  ToWeights(visible, position, work);
  TileProduct(work.rows, columns, kBlockTokens, work.scores, kBlockTokens, block.values, columns,
              /*accumulate=*/true, work.sums.acc, columns);
}

BlockView<float> InF32(const BlockView<float>& block, const TileWork& /*work*/) { return block; }

BlockView<float> InF32(const BlockView<std::uint16_t>& block, const TileWork& work) {
  float* keys_t = work.widened;
  float* values = keys_t + work.key_dim * kBlockTokens;
  Bf16ToF32(block.keys_t, keys_t, work.key_dim * kBlockTokens);
  Bf16ToF32(block.values, values, kBlockTokens * work.sums.padded_value_dim);
  return {keys_t, values, block.valid};
}

}  // namespace

std::int64_t PaddedTileRows(std::int64_t rows) {
  std::int64_t padded = 0;
  while (padded < rows) padded += ProductRows(rows - padded);
  return padded;
}

void TileProduct(std::int64_t rows, std::int64_t n, std::int64_t k, const float* a,
                 std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c,
                 std::int64_t ldc) {
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < rows; r += count) {
    count = ProductRows(rows - r);
    GemmNN(count, n, k, a + r * lda, lda, b, ldb, accumulate, c + r * ldc, ldc);
  }
}

std::int64_t FewRows() { return GemmHonoursChain() ? kFewRows : 0; }

template <typename Element>
void AttendBlock(const BlockView<Element>& block, const BlockView<Element>& next,
                 const VisibleKeys& visible, std::int64_t position, const TileWork& work) {
  if (block.valid == 0) return;  // adds nothing to any row
  if (work.rows <= FewRows()) {
    AttendRowByRow(block, next, visible, position, work);
  } else {
    AttendTile(InF32(block, work), visible, position, work);
  }
}

template void AttendBlock(const BlockView<float>&, const BlockView<float>&, const VisibleKeys&,
                          std::int64_t, const TileWork&);
template void AttendBlock(const BlockView<std::uint16_t>&, const BlockView<std::uint16_t>&,
                          const VisibleKeys&, std::int64_t, const TileWork&);

}  // namespace attnd::engine
