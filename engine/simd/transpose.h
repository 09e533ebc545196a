// Blocks of 64 keys with one column per token, [d][64]: a row is one component of 64 keys, which
// makes the block the right operand of q K^T as it lies. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_TRANSPOSE_H_
#define ATTND_ENGINE_SIMD_TRANSPOSE_H_

#include <cstdint>

#include "engine/simd/row_lists.h"

namespace attnd::engine {

// Writes `count` <= 64 keys [count x d] with row stride `stride` floats into the first `count`
// columns of a block; the others are not touched. The bfloat16 form rounds to nearest even.
void TransposeKeys(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   float* keys_t);
void TransposeKeys(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   std::uint16_t* keys_t);

// Rows 0, 1, ... of a list of at most 64 become columns 0, 1, ... of a block; the others are not
// touched.
void TransposeRows(const RowList& list, float* keys_t);

// Columns 0 to 63 of a block become the rows places[0] to places[63] of keys [.., d]; a negative
// place: none.
void UntransposeKeys(const float* keys_t, std::int64_t d, const std::int32_t* places, float* keys);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_TRANSPOSE_H_
