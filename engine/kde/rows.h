// Rows of one head, as the functions of this directory take and give them: vectors of `dim` numbers
// that begin `stride` floats apart. Views; whoever makes one keeps the memory. Any thread.
#ifndef ATTND_ENGINE_KDE_ROWS_H_
#define ATTND_ENGINE_KDE_ROWS_H_

#include <cstdint>

namespace attnd::engine {

struct Rows {
  const float* data = nullptr;
  std::int64_t count = 0;
  std::int64_t dim = 0;
  std::int64_t stride = 0;

  const float* row(std::int64_t i) const { return data + i * stride; }
};

inline Rows DenseRows(const float* data, std::int64_t count, std::int64_t dim) {
  return {data, count, dim, dim};
}

struct OutputRows {
  float* data = nullptr;
  std::int64_t stride = 0;

  float* row(std::int64_t i) const { return data + i * stride; }
};

// In f64, where the products are exact, in four partial sums.
inline double DotF64(const float* a, const float* b, std::int64_t dim) {
  double sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= dim; i += 4) {
    for (std::int64_t j = 0; j < 4; ++j) {
      sums[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
    }
  }
  for (; i < dim; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_ROWS_H_
