#include "engine/linear/open_block.h"

#include <algorithm>

#include "engine/gemm.h"
#include "engine/simd/transpose.h"
#include "engine/tensor.h"

namespace attnd::engine {

std::int64_t OpenBlockWidth(std::int64_t rows) { return RoundUp(rows, kGemmColumnMultiple); }

const float* OpenKeys(const LinearDims& dims, const float* features, std::int64_t rows,
                      Scratch& scratch) {
  const std::int64_t width = OpenBlockWidth(rows);
  float* keys_t = scratch.Take(dims.features * kBlockTokens);
  TransposeKeys(features, dims.features, rows, dims.features, keys_t);
  for (std::int64_t i = 0; rows < width && i < dims.features; ++i) {
    std::fill(keys_t + i * kBlockTokens + rows, keys_t + i * kBlockTokens + width, 0.0F);
  }
  return keys_t;
}

const float* OpenValues(const LinearDims& dims, const float* values, std::int64_t stride,
                        std::int64_t rows, Scratch& scratch, float one) {
  const std::int64_t width = OpenBlockWidth(rows);
  float* copy = scratch.Take(width * dims.summary_columns);
  for (std::int64_t j = 0; j < rows; ++j) {
    float* row = copy + j * dims.summary_columns;
    std::copy_n(values + j * stride, dims.value_dim, row);
    row[dims.value_dim] = one;
    std::fill(row + dims.value_dim + 1, row + dims.summary_columns, 0.0F);
  }
  std::fill(copy + rows * dims.summary_columns, copy + width * dims.summary_columns, 0.0F);
  return copy;
}

}  // namespace attnd::engine
