// Sums of weighted rows in f64, element by element and with fused multiply-adds, so that bits
// depend neither on the instruction set nor on how many elements there are. Arrays do not overlap,
// n may be 0, no alignment is required. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_WEIGHTED_SUMS_H_
#define ATTND_ENGINE_SIMD_WEIGHTED_SUMS_H_

#include <cstdint>

namespace attnd::engine {

// sums[i] = weight * x[i] + sums[i].
void AddWeighted(const double* x, double weight, double* sums, std::int64_t n);

// sums[i] = weight * (slope * y[i] + x[i]) + sums[i].
void AddWeighted(const float* x, double slope, const float* y, double weight, double* sums,
                 std::int64_t n);

// sums[i] = factor * sums[i].
void ScaleSums(double factor, double* sums, std::int64_t n);

// sum over i of (scale * (weight * y[i] + x[i]) - z[i])^2 in 8 fixed lanes.
double SquaredDifference(const double* x, double weight, const double* y, double scale,
                         const double* z, std::int64_t n);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_WEIGHTED_SUMS_H_
