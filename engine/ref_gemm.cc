#include "engine/ref_gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/gemm.h"

namespace attnd::engine {
namespace {

// a(i, k) is a[i * row + k * column].
void RefGemm(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t row,
             std::int64_t column, const float* b, std::int64_t ldb, bool accumulate, float* c,
             std::int64_t ldc) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t first = 0; first < k; first += kGemmInnerPanel) {
        const std::int64_t last = std::min(k, first + kGemmInnerPanel);
        float s = 0.0F;
        for (std::int64_t p = first; p < last; ++p) {
          s = std::fma(a[i * row + p * column], b[p * ldb + j], s);
        }
        float& out = c[i * ldc + j];
        out = accumulate || first > 0 ? out + s : s;
      }
    }
  }
}

}  // namespace

void RefGemmNN(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
               const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc) {
  RefGemm(m, n, k, a, lda, 1, b, ldb, accumulate, c, ldc);
}

void RefGemmTN(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
               const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc) {
  RefGemm(m, n, k, a, 1, lda, b, ldb, accumulate, c, ldc);
}

}  // namespace attnd::engine
