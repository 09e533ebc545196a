// Partial softmax sums of query rows over a piece of the context, and how pieces become an answer.
//
// Over the keys j of a piece with scores s_j: max = max s_j, sum = sum exp(s_j - max), acc = sum
// exp(s_j - max) v_j. A piece without visible keys is (0, -inf, 0). A row whose arithmetic left the
// range of f32 has a NaN sum, which stays. Two pieces merge by rescaling both to the larger maximum
// (Milakov & Gimelshein 2018, arXiv:1805.02867, section 3.1). Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_EXACT_SOFTMAX_SUMS_H_
#define ATTND_ENGINE_EXACT_SOFTMAX_SUMS_H_

#include <cstdint>

#include "engine/engine.h"
#include "engine/exact/row_tile.h"
#include "engine/scratch.h"

namespace attnd::engine {

// Borrowed.
struct SoftmaxSums {
  // What one row takes, in floats.
  static std::int64_t RowFloats(std::int64_t padded_value_dim) { return padded_value_dim + 2; }

  // Lays the three arrays of `rows` rows out in `memory`, rows * RowFloats() floats.
  SoftmaxSums(float* memory, std::int64_t rows, std::int64_t padded_value_dim);

  void Clear();

  std::int64_t rows;
  std::int64_t padded_value_dim;
  float* acc;  // [rows, padded d_v]
  float* max;  // [rows]
  float* sum;  // [rows]
};

// into = merge(into, from), row by row. The shapes are equal.
void MergeSums(const SoftmaxSums& from, SoftmaxSums& into, Scratch& scratch);

// The flag of a row: kEmpty, kOverflow (a score or a sum of weighted values left f32) or kOk.
RowFlag FlagOfRow(const SoftmaxSums& sums, std::int64_t row, std::int64_t value_dim);

// Writes outputs, flags and log-normalizers of a tile's rows, as far as `answer` asks for them:
//  - kOk: acc / sum, max + ln(sum);
//  - kEmpty: zeros, -inf;
//  - kOverflow: zeros, NaN, so that nobody merges such a piece as if it were an answer.
void WriteAnswerRows(const SoftmaxSums& sums, const RowTile& tile, std::int64_t value_dim,
                     const AnswerView& answer);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_SOFTMAX_SUMS_H_
