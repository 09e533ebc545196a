#include "engine/linear/answer_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/linear/denominator_guard.h"
#include "engine/linear/row_loops.h"

namespace attnd::engine {

void WriteAnswerRow(const LinearLayer& layer, const AnswerRow& row, const AnswerView& answer) {
  const std::int64_t dv = layer.shape.value_dim;
  const std::int64_t index = row.query * layer.shape.query_heads + row.query_head;
  float* output = answer.outputs + index * dv;
  float* numerator = answer.numerators != nullptr ? answer.numerators + index * dv : nullptr;

  Guarded guarded = {0.0F, RowFlag::kEmpty};
  // A quotient may overflow where its parts do not.
  bool sums_finite = true;
  if (!row.empty) {
    guarded = ApplyGuard(layer.config, row.sums[dv]);
    sums_finite = std::isfinite(row.sums[dv]);
    const bool finite = std::isfinite(guarded.divisor) && sums_finite;
    // A row that the guard zeroes must still have had a numerator.
    const float divisor = guarded.divisor > 0 ? guarded.divisor : 1.0F;
    bool output_finite = DivideRow(row.sums, divisor, dv, output) && finite;
    // A normalised output's powers of two cancel.
    for (std::int64_t i = 0; row.exponent != 0 && !layer.config.normalized && i < dv; ++i) {
      output[i] = std::ldexp(output[i], row.exponent);
      output_finite = output_finite && std::isfinite(output[i]);
    }
    if (!output_finite) guarded = {0.0F, RowFlag::kOverflow};
    if (numerator != nullptr) {
      sums_finite = DivideRow(row.sums, 1.0F, dv, numerator) && sums_finite;
    }
  }
  if (!(guarded.divisor > 0)) std::fill_n(output, dv, 0.0F);
  // Nobody must merge a piece that overflowed as if it were empty.
  const float no_sum = row.empty ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  const bool no_sums = row.empty || !sums_finite;
  if (numerator != nullptr && no_sums) std::fill_n(numerator, dv, no_sum);
  if (answer.denominators != nullptr) {
    answer.denominators[index] = no_sums ? no_sum : row.sums[dv] + 0.0F;
  }
  if (answer.exponents != nullptr) answer.exponents[index] = no_sums ? 0 : row.exponent;
  if (answer.flags != nullptr) answer.flags[index] = static_cast<std::uint8_t>(guarded.flag);
}

}  // namespace attnd::engine
