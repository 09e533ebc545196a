#include "engine/efficient/column_fold.h"

#include <cmath>

#include "engine/linear/fold.h"

namespace attnd::engine {
namespace {

HeadRows AsHeadRows(const EncodedRows& rows, const float* mantissas, const ValueRows& values) {
  return {rows.rows, mantissas, values.values, values.stride, rows.valid, nullptr};
}

}  // namespace

bool FoldColumns(const LinearDims& dims, const EncodedRows& rows, const ValueRows& values,
                 std::int64_t head, EfficientState& state, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int32_t* base = state.known_steps(head);
  const AlignedRows aligned = AlignRows(rows, base, scratch);
  if (aligned.base_factors != nullptr) {
    double* totals = state.sums().totals(head);
    ForTotals(dims, [&](std::int64_t i, std::int64_t column) {
      totals[i] *= static_cast<double>(aligned.base_factors[column]);
    });
  }
  if (base == nullptr || aligned.base_factors != nullptr) RaiseSteps(rows, state.steps(head));
  return FoldRows(dims, AsHeadRows(rows, aligned.mantissas, values), head, state.sums(), scratch);
}

bool CanFoldColumns(const LinearDims& dims, const EncodedRows& rows, const ValueRows& values,
                    float max_value, std::int64_t head, const EfficientState& state,
                    Scratch& scratch) {
  // Bringing numbers to larger steps only makes them smaller.
  if (SurelyCanFoldRows(dims, AsHeadRows(rows, rows.mantissas, values), max_value, head,
                        state.sums())) {
    return true;
  }
  const Scratch::Frame frame(scratch);
  const AlignedRows aligned = AlignRows(rows, state.known_steps(head), scratch);
  const HeadRows brought = AsHeadRows(rows, aligned.mantissas, values);
  if (aligned.base_factors == nullptr) {
    return CanFoldRows(dims, brought, head, state.sums(), scratch);
  }
  float* sums = scratch.Take(dims.totals());
  if (!std::isfinite(SumRows(dims, brought, sums, scratch))) return false;
  const double* totals = state.sums().totals(head);
  bool finite = true;
  ForTotals(dims, [&](std::int64_t i, std::int64_t column) {
    const double total = totals[i] * static_cast<double>(aligned.base_factors[column]) +
                         static_cast<double>(sums[i]);
    finite = finite && std::isfinite(static_cast<float>(total));
  });
  return finite;
}

}  // namespace attnd::engine
