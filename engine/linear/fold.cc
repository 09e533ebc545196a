#include "engine/linear/fold.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/gemm.h"
#include "engine/linear/row_loops.h"
#include "engine/simd/maps.h"
#include "engine/simd/totals.h"

namespace attnd::engine {
namespace {

constexpr double kLimit = std::numeric_limits<float>::max();
// Covers the f64 rounding of a bound, and of a total relative to its f32 rounding.
constexpr double kSlack = 1.0 + 0x1p-22;

// Values with a multiple of 16 columns: the caller's own where they have that already.
struct PaddedValues {
  const float* data;
  std::int64_t stride;
};

PaddedValues PadValues(const LinearDims& dims, const HeadRows& rows, Scratch& scratch) {
  if (dims.value_dim == dims.value_columns) return {rows.values, rows.value_stride};
  float* padded = scratch.Take(rows.rows * dims.value_columns);
  for (std::int64_t t = 0; t < rows.rows; ++t) {
    float* row = padded + t * dims.value_columns;
    std::copy_n(rows.values + t * rows.value_stride, dims.value_dim, row);
    std::fill(row + dims.value_dim, row + dims.value_columns, 0.0F);
  }
  return {padded, dims.value_columns};
}

// The sums of the rows in the layout of the totals. Returns their largest magnitude, NaN or
// infinity where one is not finite. A feature that is not finite makes its Z so.
float SumRows(const LinearDims& dims, const HeadRows& rows, float* sums, Scratch& scratch) {
  const PaddedValues values = PadValues(dims, rows, scratch);
  GemmTN(dims.features, dims.value_columns, rows.rows, rows.features, dims.features, values.data,
         values.stride, /*accumulate=*/false, sums, dims.value_columns);
  ColumnSums(rows.features, rows.rows, dims.features, sums + dims.features * dims.value_columns);
  return MaxAbs(sums, dims.totals());
}

// The largest magnitude of totals rounded to f32; infinity where one leaves its range.
float MaxRounded(const LinearDims& dims, const double* totals, Scratch& scratch) {
  return RoundTotals(totals, scratch.Take(dims.totals()), dims.totals());
}

}  // namespace

bool FoldRows(const LinearDims& dims, const HeadRows& rows, std::int64_t head, LinearState& state,
              Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  float* sums = scratch.Take(dims.totals());
  const float max_sum = SumRows(dims, rows, sums, scratch);
  if (!std::isfinite(max_sum)) return false;
  AddToTotals(sums, state.totals(head), dims.totals());
  double& bound = state.bound(head);
  bound = (bound + static_cast<double>(max_sum)) * kSlack;
  if (bound < kLimit) return true;
  const float max_total = MaxRounded(dims, state.totals(head), scratch);
  bound = static_cast<double>(max_total) * kSlack;
  return std::isfinite(max_total);
}

void RoundSummary(const LinearDims& dims, std::int64_t head, LinearState& state) {
  const double* totals = state.totals(head);
  const double* key_totals = totals + dims.features * dims.value_columns;
  float* summary = state.summary(head);
  float max = 0;
  for (std::int64_t i = 0; i < dims.features; ++i) {
    float* row = summary + i * dims.summary_columns;
    max = std::max(max, RoundTotals(totals + i * dims.value_columns, row, dims.value_dim));
    row[dims.value_dim] = static_cast<float>(key_totals[i]);
    max = std::max(max, std::abs(row[dims.value_dim]));
  }
  state.bound(head) = static_cast<double>(max) * kSlack;
}

bool CanFoldRows(const LinearDims& dims, const HeadRows& rows, std::int64_t head,
                 const LinearState& state, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  float* sums = scratch.Take(dims.totals());
  if (!std::isfinite(SumRows(dims, rows, sums, scratch))) return false;
  if (!state.has_sums()) return true;
  const double* totals = state.totals(head);
  for (std::int64_t i = 0; i < dims.totals(); ++i) {
    if (!std::isfinite(static_cast<float>(totals[i] + static_cast<double>(sums[i])))) return false;
  }
  return true;
}

bool SurelyCanFoldRows(const LinearDims& dims, const HeadRows& rows, float max_value,
                       std::int64_t head, const LinearState& state) {
  const auto max_feature = static_cast<double>(MaxAbs(rows.features, rows.rows * dims.features));
  // A chain of at most 64 roundings exceeds the exact sum of magnitudes by far less than 1 %. NaN
  // compares false.
  const double max_sum = 1.01 * static_cast<double>(rows.rows) * max_feature *
                         std::max(1.0, static_cast<double>(max_value));
  return state.bound(head) + max_sum < kLimit;
}

}  // namespace attnd::engine
