// Loops that find what is near: dot products of rows, and the largest of a row of scores. Sums run
// in 16 fixed lanes, so that bits depend neither on the instruction set nor on alignment.
// Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_NEAREST_H_
#define ATTND_ENGINE_SIMD_NEAREST_H_

#include <cstdint>

namespace attnd::engine {

// Asks for a row that will be read soon: rows in an order of their own come from memory one by one
// otherwise.
inline void PrefetchRow(const float* row, std::int64_t n) {
  for (std::int64_t i = 0; i < n; i += 16) __builtin_prefetch(row + i);
}

// sum a[i] b[i] in f32.
float Dot(const float* a, const float* b, std::int64_t n);

// sum (a[i] - b[i])^2 in f32.
float SquaredDistance(const float* a, const float* b, std::int64_t n);

// Where x[i] + bias[i] is largest, and how far above the second largest: 0 where n is 1.
struct Nearest {
  std::int64_t index = 0;
  float margin = 0.0F;
};
Nearest NearestOf(const float* x, const float* bias, std::int64_t n);

// The first index at which x[i] + bias[i] is largest; 0 where none is above -inf.
std::int64_t IndexOfLargest(const float* x, const float* bias, std::int64_t n);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_NEAREST_H_
