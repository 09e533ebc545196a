// exp of key numbers, held so that any finite key can be added and compared: a column (one
// component of all keys of a head) is summed over the sequence, and its numbers may differ by more
// than f32 holds.
//
// exp(k) is a mantissa times 2^(64 s) for an integer s, the key number's steps: s = round(k log2(e)
// / 64), and the mantissa, exp(k - 64 s ln 2), is within [2^-32, 2^32] up to rounding. Ordinary
// numbers, |k| < 22, all have s = 0, so nothing is ever rescaled where keys are ordinary.
//
// A sum takes the largest steps of its column, and a number enters it times 2^(64 (s - largest)):
// exactly at one step's difference, as 0 from two on, where it is below 2^-64 of the column's
// largest. What is largest depends on the numbers alone, so it does not matter in which calls they
// came.
//
// From |k| = 2^29 on, neighbouring f32 numbers are 64 and more apart, more than two steps: all that
// matters is their order. There the mantissa is 1, and s goes up by 2 from one f32 number to the
// next, so that it fits 32 bits up to the largest.
//
// Pure functions; any thread.
#ifndef ATTND_ENGINE_EFFICIENT_KEY_COLUMNS_H_
#define ATTND_ENGINE_EFFICIENT_KEY_COLUMNS_H_

#include <cstdint>
#include <limits>

#include "engine/block.h"
#include "engine/linear/linear_layer.h"
#include "engine/scratch.h"

namespace attnd::engine {

// The steps of a column without numbers: below all others.
inline constexpr std::int32_t kNoSteps = std::numeric_limits<std::int32_t>::min();

// What 2^(64 (steps - largest)) counts as; `largest` is at least `steps`. Steps are below 2^31 - 1.
inline float StepFactor(std::int32_t steps, std::int32_t largest) {
  return steps == largest ? 1.0F : steps + 1 == largest ? 0x1p-64F : 0.0F;
}

// A finite key number: its steps and the logarithm of its mantissa, within [-22.2, 22.2].
struct SplitKey {
  std::int32_t steps = 0;
  float log_mantissa = 0;
};
SplitKey Split(float key);

// The mantissas of the rows' keys of one kv-head and their steps, both [count x dims.features].
// Zeros beyond c, and in the rows of masked tokens: exp(0) = 1 would count. True, with nothing
// written to `steps`, where all of them are 0, as they are for ordinary keys.
bool EncodeKeyRows(const LinearLayer& layer, const KeyRows& rows, std::int64_t head,
                   float* mantissas, std::int32_t* steps);

// Rows of one head, encoded, `columns` numbers each. Borrowed.
struct EncodedRows {
  const float* mantissas = nullptr;
  const std::int32_t* steps =
      nullptr;  // null: all are 0, and so are those of what was summed before
  std::int64_t rows = 0;
  RowMask valid = 0;  // unmasked rows; the others have mantissas of zero
  std::int64_t columns = 0;
};

// Whether the steps of every column are the same in all valid rows and in `base`; null: in the rows
// alone. Then every factor is 1.
bool SameSteps(const EncodedRows& rows, const std::int32_t* base);

// largest[a] = the largest of largest[a] and the steps of the valid rows.
void RaiseSteps(const EncodedRows& rows, std::int32_t* largest);

// The rows brought to the largest steps of each column among them and `base`. Valid as long as the
// scratch frame, and the rows.
struct AlignedRows {
  const float* mantissas = nullptr;     // the caller's own where nothing had to be scaled
  const float* base_factors = nullptr;  // [columns], of a sum with the steps of `base`; null: ones
};
// `base` null: nothing was summed before; its factors are then of no use.
AlignedRows AlignRows(const EncodedRows& rows, const std::int32_t* base, Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EFFICIENT_KEY_COLUMNS_H_
