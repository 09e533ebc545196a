// Loops over rows of a matrix in an order of their own: sums of rows, and numbers of each row. In
// long lists rows are asked for a few rows before they are read, since rows in such an order come
// from memory one by one otherwise. Sums over rows run in the order of the list and element by
// element, sums within a row in the 16 fixed lanes of Dot() (engine/simd/nearest.h), so that bits
// do not depend on the instruction set. No alignment is required. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_ROW_LISTS_H_
#define ATTND_ENGINE_SIMD_ROW_LISTS_H_

#include <cstdint>

namespace attnd::engine {

// Rows order[0], order[1], ... of a row-major matrix. Borrowed.
struct RowList {
  const float* rows = nullptr;
  std::int64_t dim = 0;
  const std::int32_t* order = nullptr;
  std::int64_t count = 0;

  const float* row(std::int64_t i) const { return rows + order[i] * dim; }
};

// sums[c] = the sum of component c in f64; 0 for no rows.
void SumRows(const RowList& list, double* sums);

// dots[i] = Dot(row i, x).
void DotRows(const RowList& list, const float* x, float* dots);

// squares[i] = Dot(o, o) for o = row i - x, component by component in f32.
void SquareOffsets(const RowList& list, const float* x, float* squares);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_ROW_LISTS_H_
