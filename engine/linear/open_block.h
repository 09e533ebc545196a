// One head's rows of the open block, copied for the products that answer from them. The layer's
// writer may be writing later rows meanwhile: only visible ones are read, and zeros stand beyond.
//
// Any thread; what is returned is valid as long as the scratch frame.
#ifndef ATTND_ENGINE_LINEAR_OPEN_BLOCK_H_
#define ATTND_ENGINE_LINEAR_OPEN_BLOCK_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/linear/linear_layer.h"
#include "engine/scratch.h"

namespace attnd::engine {

// The products may be 16, 32, 48 or 64 tokens wide: terms with a weight of +0 do not change a
// chain's bits (up to the sign of a zero, and results have + 0 added).
std::int64_t OpenBlockWidth(std::int64_t rows);

// features^T [dims.features x width], rows 64 floats apart, of `rows` dense feature rows.
const float* OpenKeys(const LinearDims& dims, const float* features, std::int64_t rows,
                      Scratch& scratch);

// [V | one] [width x dims.summary_columns] of `rows` value rows, `stride` floats apart. `one`: 1,
// or 0 for sums without a denominator.
const float* OpenValues(const LinearDims& dims, const float* values, std::int64_t stride,
                        std::int64_t rows, Scratch& scratch, float one = 1.0F);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_OPEN_BLOCK_H_
