// Loops over a leaf: 64 keys as columns [dim][64] and 64 values as rows [64][n], n a multiple of
// 16. Rows that are not valid have weights and roots of 0. Sums in f64 with fused multiply-adds;
// they run in the order of components or of keys, but for the mean key's, which run in 8 fixed
// lanes: bits do not depend on the instruction set. Outputs do not overlap inputs, no alignment is
// required. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_LEAF_SUMS_H_
#define ATTND_ENGINE_SIMD_LEAF_SUMS_H_

#include <cstdint>

namespace attnd::engine {

// Keys of a leaf, and its mean key with component c at mean[c * mean_stride]. Borrowed.
struct KeyColumns {
  const float* keys_t = nullptr;
  std::int64_t dim = 0;
  const float* mean = nullptr;
  std::int64_t mean_stride = 1;
};

// products[j] = sum over c of x[c] keys_t[c][j].
void KeyProducts(const float* keys_t, std::int64_t dim, const float* x, double* products);

// mean[c * mean_stride] = sum over j of weights[j] keys_t[c][j].
void MeanKey(const float* keys_t, std::int64_t dim, const double* weights, float* mean,
             std::int64_t mean_stride);

// squares[j] = sum over c of (keys_t[c][j] - mean[c])^2.
void SquaredDistances(const KeyColumns& leaf, double* squares);

// mean[c] = sum over j of weights[j] values[j][c].
void MeanValue(const float* values, std::int64_t n, const double* weights, float* mean);

// keys[j][c] = roots[j] (keys_t[c][j] - mean[c]) in rows of `width`, a multiple of 8 and at least
// dim; 0 beyond dim.
void CentreKeys(const KeyColumns& leaf, const float* roots, std::int64_t width, float* keys);

// out[j][c] = roots[j] (values[j][c] - mean[c]).
void CentreValues(const float* values, std::int64_t n, const float* mean, const float* roots,
                  float* out);

// Adds the rows whose bits are set, `stride` floats apart: sums[c] += x and squares[c] += x^2 for
// every component x = rows[j * stride + c] of `dim`.
void AddRowsAndSquares(const float* rows, std::int64_t stride, std::int64_t dim,
                       std::uint64_t valid, double* sums, double* squares);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_LEAF_SUMS_H_
