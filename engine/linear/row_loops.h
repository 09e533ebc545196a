// The vector loops that linear attention needs beside its products, with run-time dispatch. Bits do
// not depend on the instruction set. No alignment is required; n may be 0. Thread-safe; cannot
// fail.
#ifndef ATTND_ENGINE_LINEAR_ROW_LOOPS_H_
#define ATTND_ENGINE_LINEAR_ROW_LOOPS_H_

#include <cstdint>

namespace attnd::engine {

// sums[i] = sum over rows, in row order, of x[row][i], for dense rows of n floats: the bits of a
// product with a column of ones.
void ColumnSums(const float* x, std::int64_t rows, std::int64_t n, float* sums);

// Sets to +0 the first n of a row's scores whose bit in `keep` is not set; n at most 64. A select:
// infinities and NaNs go as well.
void KeepColumns(std::uint64_t keep, std::int64_t n, float* scores);

// y = y * x, element by element.
void MultiplyRow(const float* x, std::int64_t n, float* y);

// y = x / divisor + 0 (so never -0). Returns whether all results are finite. y does not overlap x.
bool DivideRow(const float* x, float divisor, std::int64_t n, float* y);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_ROW_LOOPS_H_
