// Folding tokens into the sums of one head of Efficient Attention, and the question whether they
// can be folded.
//
// The definition, which fixes the bits: the steps of each column become the largest among the
// totals' and those of the block's unmasked rows; totals and mantissas are brought to them
// (key_columns.h), and then the block is folded as fold.h says.
//
// Any thread; the state belongs to the caller.
#ifndef ATTND_ENGINE_EFFICIENT_COLUMN_FOLD_H_
#define ATTND_ENGINE_EFFICIENT_COLUMN_FOLD_H_

#include <cstdint>

#include "engine/efficient/efficient_state.h"
#include "engine/efficient/key_columns.h"
#include "engine/linear/linear_state.h"
#include "engine/scratch.h"

namespace attnd::engine {

// Value rows of one head, d_v numbers each, `stride` floats apart. Rows of masked tokens are zeros.
struct ValueRows {
  const float* values = nullptr;
  std::int64_t stride = 0;
};

// Adds the rows to the head's totals. False, leaving the totals unusable, where a sum or a total
// rounded to f32 is not finite. Requires state.has_sums().
bool FoldColumns(const LinearDims& dims, const EncodedRows& rows, const ValueRows& values,
                 std::int64_t head, EfficientState& state, Scratch& scratch);

// Whether FoldColumns() would be true; the state is not changed, and need not have sums.
// `max_value` is at least the rows' largest value: most rows are found to be far from the limit
// with it, for others it costs as much as folding.
bool CanFoldColumns(const LinearDims& dims, const EncodedRows& rows, const ValueRows& values,
                    float max_value, std::int64_t head, const EfficientState& state,
                    Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EFFICIENT_COLUMN_FOLD_H_
