// The f64 running totals of linear attention: f32 sums of a block are added to them, and they are
// rounded to f32 once per sealed block. Arrays do not overlap, n may be 0, no alignment is
// required. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_TOTALS_H_
#define ATTND_ENGINE_SIMD_TOTALS_H_

#include <cstdint>

namespace attnd::engine {

// totals[i] += factor * block[i] in f64, for a power of two `factor` at most 1, so that the product
// is exact.
void AddToTotals(const float* block, double factor, double* totals, std::int64_t n);

// The same for totals, each of which may be subnormal after it.
void AddToTotals(const double* other, double factor, double* totals, std::int64_t n);

// out[i] = a_factor * a[i] + b_factor * b[i] in f64, for powers of two at most 1.
void SumTotals(const float* a, double a_factor, const float* b, double b_factor, double* out,
               std::int64_t n);
void SumTotals(const double* a, double a_factor, const double* b, double b_factor, double* out,
               std::int64_t n);

// out[i] = totals[i] rounded to nearest even. Returns max |out[i]| (0 for n = 0): +inf if a total
// exceeds f32's range, NaN if any is NaN.
float RoundTotals(const double* totals, float* out, std::int64_t n);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_TOTALS_H_
