// Exact attention for one query over one block of 64 tokens: the two products as loops that run at
// memory bandwidth, with the bits of GemmNN (the chain contract of engine/gemm.h).
//
// Block layout: keys [d][64] (engine/simd/transpose.h); values [64][dv_padded], dv_padded a
// multiple of 16. Both as f32 or as bfloat16 bit patterns; a bfloat16 block gives the bits of the
// same block converted to f32. Blocks need no alignment, 64 bytes is fastest.
//
// `prefetch` (may be null) points to a block of the same shape that will be read next; the
// beginnings of its pages are brought into the cache meanwhile. Fastest is memory in large pages,
// with each block's values behind its keys and the blocks in the order in which they are read.
//
// Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_ONE_QUERY_H_
#define ATTND_ENGINE_SIMD_ONE_QUERY_H_

#include <cstdint>

namespace attnd::engine {

// scores[j] = q . key_j for the 64 tokens: the bits of GemmNN with A = q [1 x d], B = keys_t [d x
// 64].
void ScoresOneQuery(const float* q, std::int64_t d, const float* keys_t, float* scores,
                    const float* prefetch);
void ScoresOneQuery(const float* q, std::int64_t d, const std::uint16_t* keys_t, float* scores,
                    const std::uint16_t* prefetch);

// acc[c] += sum_j weights[j] * values[j][c]: the bits of an accumulating GemmNN with A = weights [1
// x 64].
void WeightedSumOneQuery(const float* weights, const float* values, std::int64_t dv_padded,
                         float* acc, const float* prefetch);
void WeightedSumOneQuery(const float* weights, const std::uint16_t* values, std::int64_t dv_padded,
                         float* acc, const std::uint16_t* prefetch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_ONE_QUERY_H_
