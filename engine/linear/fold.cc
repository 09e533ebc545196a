#include "engine/linear/fold.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/gemm.h"
#include "engine/linear/row_exponents.h"
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

// A block's rows brought to one exponent, and the factors with which its sums and the totals before
// it enter the new totals.
struct Aligned {
  HeadRows rows;
  std::int32_t exponent = kNoExponent;  // of the new totals
  double block_factor = 1.0;
  double totals_factor = 1.0;
};

Aligned AlignRows(const LinearDims& dims, const HeadRows& rows, std::int32_t totals_exponent,
                  Scratch& scratch) {
  Aligned aligned;
  aligned.rows = rows;
  if (rows.exponents == nullptr) return aligned;
  const std::int32_t block_exponent = LargestExponent(rows.exponents, rows.valid);
  aligned.exponent = std::max(block_exponent, totals_exponent);
  if (block_exponent == kNoExponent) return aligned;  // all rows are zeros
  float* features = scratch.Take(rows.rows * dims.features);
  for (std::int64_t t = 0; t < rows.rows; ++t) {
    const bool valid = (rows.valid >> t & 1) != 0;
    const float factor = valid ? ExponentFactor(rows.exponents[t], block_exponent) : 0.0F;
    ScaleRow(rows.features + t * dims.features, factor, features + t * dims.features,
             dims.features);
  }
  aligned.rows.features = features;
  aligned.block_factor = ExponentFactorF64(block_exponent, aligned.exponent);
  // Without totals any factor is right: they are zeros.
  if (totals_exponent != kNoExponent) {
    aligned.totals_factor = ExponentFactorF64(totals_exponent, aligned.exponent);
  }
  return aligned;
}

// The largest magnitude of totals rounded to f32; infinity where one leaves its range.
float MaxRounded(const LinearDims& dims, const double* totals, Scratch& scratch) {
  return RoundTotals(totals, scratch.Take(dims.totals()), dims.totals());
}

}  // namespace

float SumRows(const LinearDims& dims, const HeadRows& rows, float* sums, Scratch& scratch) {
  const PaddedValues values = PadValues(dims, rows, scratch);
  GemmTN(dims.features, dims.value_columns, rows.rows, rows.features, dims.features, values.data,
         values.stride, /*accumulate=*/false, sums, dims.value_columns);
  float* key_sums = sums + dims.features * dims.value_columns;
  if (rows.sum_keys) {
    ColumnSums(rows.features, rows.rows, dims.features, key_sums);
    return MaxAbs(sums, dims.totals());
  }
  std::fill_n(key_sums, dims.features, 0.0F);
  if (!AllFinite(rows.features, rows.rows * dims.features)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return MaxAbs(sums, dims.totals());
}

bool FoldRows(const LinearDims& dims, const HeadRows& rows, std::int64_t head, LinearState& state,
              Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const Aligned aligned = AlignRows(dims, rows, state.exponent(head), scratch);
  float* sums = scratch.Take(dims.totals());
  const float max_sum = SumRows(dims, aligned.rows, sums, scratch);
  if (!std::isfinite(max_sum)) return false;
  double* totals = state.totals(head);
  double& bound = state.bound(head);
  if (aligned.totals_factor != 1.0) {
    for (std::int64_t i = 0; i < dims.totals(); ++i) totals[i] *= aligned.totals_factor;
    bound *= aligned.totals_factor;
  }
  state.exponent(head) = aligned.exponent;
  AddToTotals(sums, aligned.block_factor, totals, dims.totals());
  bound = (bound + static_cast<double>(max_sum)) * kSlack;
  if (bound < kLimit) return true;
  const float max_total = MaxRounded(dims, totals, scratch);
  bound = static_cast<double>(max_total) * kSlack;
  return std::isfinite(max_total);
}

float SumBlock(const LinearDims& dims, const HeadRows& rows, float* sums, std::int32_t& exponent,
               Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const Aligned aligned = AlignRows(dims, rows, kNoExponent, scratch);
  exponent = aligned.exponent;
  return SumRows(dims, aligned.rows, sums, scratch);
}

float RoundToSummary(const LinearDims& dims, const double* totals, float* summary) {
  const double* key_totals = totals + dims.features * dims.value_columns;
  float max = 0;
  for (std::int64_t i = 0; i < dims.features; ++i) {
    float* row = summary + i * dims.summary_columns;
    max = std::max(max, RoundTotals(totals + i * dims.value_columns, row, dims.value_dim));
    row[dims.value_dim] = static_cast<float>(key_totals[i]);
    max = std::max(max, std::abs(row[dims.value_dim]));
  }
  return max;
}

void RoundSummary(const LinearDims& dims, std::int64_t head, LinearState& state) {
  const float max = RoundToSummary(dims, state.totals(head), state.summary(head));
  state.bound(head) = static_cast<double>(max) * kSlack;
}

bool CanFoldRows(const LinearDims& dims, const HeadRows& rows, std::int64_t head,
                 const LinearState& state, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const Aligned aligned = AlignRows(dims, rows, state.exponent(head), scratch);
  float* sums = scratch.Take(dims.totals());
  if (!std::isfinite(SumRows(dims, aligned.rows, sums, scratch))) return false;
  if (!state.has_sums()) return true;
  const double* totals = state.totals(head);
  for (std::int64_t i = 0; i < dims.totals(); ++i) {
    const double total =
        totals[i] * aligned.totals_factor + static_cast<double>(sums[i]) * aligned.block_factor;
    if (!std::isfinite(static_cast<float>(total))) return false;
  }
  return true;
}

double BlockSumBound(const LinearDims& dims, const HeadRows& rows, float max_value) {
  const auto max_feature = static_cast<double>(MaxAbs(rows.features, rows.rows * dims.features));
  // Scaling to a common exponent only makes numbers smaller. A chain of at most 64 roundings
  // exceeds the exact sum of magnitudes by far less than 1 %.
  // Not std::max, which loses a NaN.
  const double largest = max_value < 1.0F ? 1.0 : static_cast<double>(max_value);
  return 1.01 * static_cast<double>(rows.rows) * max_feature * largest;
}

bool SurelyCanFoldRows(const LinearDims& dims, const HeadRows& rows, float max_value,
                       std::int64_t head, const LinearState& state) {
  // NaN compares false.
  return state.bound(head) + BlockSumBound(dims, rows, max_value) < kLimit;
}

}  // namespace attnd::engine
