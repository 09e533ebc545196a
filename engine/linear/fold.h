// Folding tokens into the totals of one head, and the question whether they can be folded.
//
// The definition, which fixes the bits: a block's sums are f32 chains in token order,
//   S_block(i, j) = fma(phi(k_t)_i, v_t_j, S_block(i, j)),  Z_block(i) = Z_block(i) + phi(k_t)_i,
// they are added to the f64 totals block by block, and the totals are rounded to f32 by
// RoundSummary(). It does not matter in how many calls blocks arrive. Where features are scaled
// (row_exponents.h) the block's sums take the largest exponent of its rows, and the totals the
// largest of all blocks.
//
// Any thread; the state belongs to the caller.
#ifndef ATTND_ENGINE_LINEAR_FOLD_H_
#define ATTND_ENGINE_LINEAR_FOLD_H_

#include <cstdint>

#include "engine/linear/linear_state.h"
#include "engine/scratch.h"

namespace attnd::engine {

// Up to 64 token rows of one head: features [rows x dims.features], dense; values, d_v per row,
// `value_stride` floats apart. Rows of masked tokens are zeros. Borrowed.
struct HeadRows {
  std::int64_t rows = 0;
  const float* features = nullptr;
  const float* values = nullptr;
  std::int64_t value_stride = 0;
  RowMask valid = 0;                        // unmasked rows
  const std::int32_t* exponents = nullptr;  // of each row; null: features are not scaled
  bool sum_keys = true;                     // false: Z stays 0, for sums without a denominator
};

// The sums of the rows, whose features are not scaled, in the layout of the totals. Returns their
// largest magnitude, NaN or infinity where one is not finite. A feature that is not finite makes
// its Z so. Takes scratch of the caller's frame.
float SumRows(const LinearDims& dims, const HeadRows& rows, float* sums, Scratch& scratch);

// Adds the rows to the head's totals. False, leaving the totals unusable, where a feature, a sum or
// a total rounded to f32 is not finite.
bool FoldRows(const LinearDims& dims, const HeadRows& rows, std::int64_t head, LinearState& state,
              Scratch& scratch);

// The sums of the rows in the layout of LinearState::totals, times 2 to the power of `exponent`
// (kNoExponent where features are not scaled, and without unmasked rows). Returns their largest
// magnitude, NaN or infinity where a feature or a sum is not finite.
float SumBlock(const LinearDims& dims, const HeadRows& rows, float* sums, std::int32_t& exponent,
               Scratch& scratch);

// Rounds a head's totals to a summary. Returns the largest magnitude among it.
float RoundToSummary(const LinearDims& dims, const double* totals, float* summary);

// Rounds a head's totals to its f32 summary. Requires that the last FoldRows() was true.
void RoundSummary(const LinearDims& dims, std::int64_t head, LinearState& state);

// Whether FoldRows() would be true; the state is not changed. Costs as much as folding.
bool CanFoldRows(const LinearDims& dims, const HeadRows& rows, std::int64_t head,
                 const LinearState& state, Scratch& scratch);

// At least the magnitude of every sum of the rows, cheaply: from their largest feature and
// `max_value`, at least their largest value. NaN where a feature is.
double BlockSumBound(const LinearDims& dims, const HeadRows& rows, float max_value);

// A cheap sufficient condition for CanFoldRows(), true wherever magnitudes are far from the limit
// of f32.
bool SurelyCanFoldRows(const LinearDims& dims, const HeadRows& rows, float max_value,
                       std::int64_t head, const LinearState& state);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_FOLD_H_
