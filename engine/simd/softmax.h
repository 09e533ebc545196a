// The block step of online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867), as used by exact
// attention: scores of 64 keys at a time are turned into weights relative to a running maximum, and
// what was summed before is rescaled. A row's bits depend on that row only, not on `rows` or on the
// instruction set. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_SOFTMAX_H_
#define ATTND_ENGINE_SIMD_SOFTMAX_H_

#include <cstdint>

namespace attnd::engine {

inline constexpr std::int64_t kSoftmaxBlock = 64;

// For each row r of scores [rows, 64], with bit j of its mask saying whether key j counts:
//   m      = max(row_max[r], valid scores)
//   corr   = exp(row_max[r] - m)
//   p_j    = exp(score_j - m) for valid j, 0 otherwise, written over the scores
//   row_sum[r] = row_sum[r] * corr + sum_j p_j, row_max[r] = m, corr[r] = corr
// Row r's mask is valid[r * valid_stride]: stride 0 is one mask for all rows. Start with row_max
// -inf and row_sum 0.
//
// Differences are rounded to f32. exp is within 2 ulp on [-87.33, 0] and 0 below; exp(0) is exactly
// 1, so corr is exactly 1 when the maximum stays. A row with no valid key so far keeps (-inf, 0)
// and has corr = 1. A valid score that is not finite (either infinity or NaN: the product
// overflowed) makes row_sum[r] NaN for good, which the caller looks for at the end; the row's
// weights are then meaningless, other rows are not touched.
void OnlineSoftmaxBlock(float* scores, std::int64_t rows, const std::uint64_t* valid,
                        std::int64_t valid_stride, float* row_max, float* row_sum, float* corr);

// acc[r, c] *= corr[r] for acc [rows, cols]; rows with corr[r] == 1 are not touched.
void RescaleRows(float* acc, std::int64_t rows, std::int64_t cols, const float* corr);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_SOFTMAX_H_
