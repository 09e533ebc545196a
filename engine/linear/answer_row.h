// The last step of an answer of the linear family: from the sums [N | D] of one row to its outputs,
// flag, numerator, denominator and exponent.
//
// A row flagged kEmpty or kOverflow is zeros in the outputs. Numerators and denominators are those
// before the guard (denominator_guard.h): zeros for kEmpty, NaN where they overflowed themselves.
//
// Any thread; rows of one answer are disjoint.
#ifndef ATTND_ENGINE_LINEAR_ANSWER_ROW_H_
#define ATTND_ENGINE_LINEAR_ANSWER_ROW_H_

#include <cstdint>

#include "engine/engine.h"
#include "engine/linear/linear_layer.h"

namespace attnd::engine {

struct AnswerRow {
  std::int64_t query = 0;
  std::int64_t query_head = 0;
  bool empty = false;           // sees no unmasked token
  std::int32_t exponent = 0;    // sums are times 2 to this power
  const float* sums = nullptr;  // [d_v + 1]: N, then D
};

void WriteAnswerRow(const LinearLayer& layer, const AnswerRow& row, const AnswerView& answer);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_ANSWER_ROW_H_
