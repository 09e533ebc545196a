#include "engine/efficient/column_fold.h"

#include <cmath>

#include "engine/linear/fold.h"

namespace attnd::engine {
namespace {

HeadRows AsHeadRows(const EncodedRows& rows, const float* mantissas, const ValueRows& values) {
  return {rows.rows, mantissas, values.values, values.stride, rows.valid, nullptr};
}

// The column of S and Z that element i of a head's totals belongs to.
std::int64_t ColumnOf(const LinearDims& dims, std::int64_t i) {
  const std::int64_t context = dims.features * dims.value_columns;
  return i < context ? i / dims.value_columns : i - context;
}

}  // namespace

bool FoldColumns(const LinearDims& dims, const EncodedRows& rows, const ValueRows& values,
                 std::int64_t head, EfficientState& state, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int32_t* base = state.known_steps(head);
  const AlignedRows aligned = AlignRows(rows, base, scratch);
  if (aligned.base_factors != nullptr) {
    double* totals = state.sums().totals(head);
    for (std::int64_t i = 0; i < dims.totals(); ++i) {
      totals[i] *= static_cast<double>(aligned.base_factors[ColumnOf(dims, i)]);
    }
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
  for (std::int64_t i = 0; i < dims.totals(); ++i) {
    const double total = totals[i] * static_cast<double>(aligned.base_factors[ColumnOf(dims, i)]) +
                         static_cast<double>(sums[i]);
    if (!std::isfinite(static_cast<float>(total))) return false;
  }
  return true;
}

}  // namespace attnd::engine
