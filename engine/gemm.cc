#include "engine/gemm.h"

#include <dnnl.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/ref_gemm.h"

// From the OpenMP runtime that Debian's oneDNN links (libgomp). Declared here because <omp.h>
// belongs to the compiler, and clang's is for another runtime.
extern "C" void omp_set_num_threads(int num_threads);

namespace attnd::engine {
namespace {

// The row pieces that GemmTN is cut in. Measured with K <= 64: any multiple of 16 keeps the chain
// up to 1040 rows except 32 under AVX2 (a different split of the K loop), so 32 is done as 16 + 16.
constexpr std::int64_t kFoldBrokenRows = 32;
constexpr std::int64_t kFoldStep = 16;

[[maybe_unused]] bool IsRowBucket(std::int64_t m) {
  return std::find(std::begin(kGemmRowBuckets), std::end(kGemmRowBuckets), m) !=
         std::end(kGemmRowBuckets);
}

// OpenMP's thread count belongs to the calling thread. Two OpenMP threads on a busy machine were
// measured at 8-12 ms per call, and they would split the work at places that depend on their
// number.
void UseOneThread() {
  thread_local const bool done = [] {
    omp_set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

dnnl_status_t Sgemm(char transpose_a, std::int64_t m, std::int64_t n, std::int64_t k,
                    const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                    bool accumulate, float* c, std::int64_t ldc) {
  UseOneThread();
  try {
    return dnnl_sgemm(transpose_a, 'N', m, n, k, 1.0F, a, lda, b, ldb, accumulate ? 1.0F : 0.0F, c,
                      ldc);
  } catch (...) {
    return dnnl_runtime_error;
  }
}

// Values whose sums are inexact in almost every order, so that another order shows.
std::vector<float> CheckValues(std::int64_t count, std::uint32_t state) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;  // Numerical Recipes' generator
    value = static_cast<float>(state >> 8U) * 0x1p-23F - 1.0F;
  }
  return values;
}

bool SameBits(const std::vector<float>& x, const std::vector<float>& y) {
  return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

using Product = void (*)(std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                         std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate,
                         float* c, std::int64_t ldc);

bool HonoursChain(Product product, Product reference, bool transposed, std::int64_t m,
                  std::int64_t n, std::int64_t k) {
  const std::vector<float> a = CheckValues(m * k, 1);
  const std::vector<float> b = CheckValues(k * n, 2);
  std::vector<float> c = CheckValues(m * n, 3);
  std::vector<float> expected = c;
  const std::int64_t lda = transposed ? m : k;
  product(m, n, k, a.data(), lda, b.data(), n, true, c.data(), n);
  reference(m, n, k, a.data(), lda, b.data(), n, true, expected.data(), n);
  return SameBits(c, expected);
}

bool CheckChain() {
  for (const std::int64_t m : kGemmRowBuckets) {
    if (!HonoursChain(GemmNN, RefGemmNN, false, m, 80, 260)) return false;
    if (!HonoursChain(GemmNN, RefGemmNN, false, m, 64, 64)) return false;
  }
  for (const std::int64_t m : {16, 32, 48, 64, 192}) {
    if (!HonoursChain(GemmTN, RefGemmTN, true, m, 80, kGemmFoldRows)) return false;
  }
  return true;
}

}  // namespace

std::int64_t GemmPaddedRows(std::int64_t m) {
  assert(m >= 1 && m <= kGemmMaxRows);
  return *std::lower_bound(std::begin(kGemmRowBuckets), std::end(kGemmRowBuckets) - 1, m);
}

void GemmNN(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
            const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc) {
  assert(IsRowBucket(m) && n > 0 && n % kGemmColumnMultiple == 0 && k >= 1);
  assert(lda >= k && ldb >= n && ldc >= n);
  for (std::int64_t first = 0; first < k; first += kGemmInnerPanel) {
    const std::int64_t size = std::min(kGemmInnerPanel, k - first);
    const float* panel_a = a + first;
    const float* panel_b = b + first * ldb;
    const bool add = accumulate || first > 0;
    if (Sgemm('N', m, n, size, panel_a, lda, panel_b, ldb, add, c, ldc) != dnnl_success) {
      RefGemmNN(m, n, size, panel_a, lda, panel_b, ldb, add, c, ldc);
    }
  }
}

void GemmTN(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
            const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc) {
  assert(m > 0 && m % kFoldStep == 0 && n > 0 && n % kGemmColumnMultiple == 0 && k >= 1 &&
         k <= kGemmFoldRows);
  assert(lda >= m && ldb >= n && ldc >= n);
  for (std::int64_t first = 0; first < m;) {
    std::int64_t rows = std::min(kGemmMaxRows, m - first);
    if (rows == kFoldBrokenRows) rows = kFoldStep;
    float* piece = c + first * ldc;
    if (Sgemm('T', rows, n, k, a + first, lda, b, ldb, accumulate, piece, ldc) != dnnl_success) {
      RefGemmTN(rows, n, k, a + first, lda, b, ldb, accumulate, piece, ldc);
    }
    first += rows;
  }
}

absl::Status GemmInitThread() {
  constexpr std::int64_t kSide = 16;
  const std::vector<float> a(kSide * kSide, 1.0F);
  std::vector<float> c(kSide * kSide);
  for (const char transpose : {'N', 'T'}) {
    const dnnl_status_t status = Sgemm(transpose, kSide, kSide, kSide, a.data(), kSide, a.data(),
                                       kSide, false, c.data(), kSide);
    if (status == dnnl_out_of_memory)
      return absl::ResourceExhaustedError("oneDNN: out of memory in a 16x16x16 product");
    if (status != dnnl_success) {
      return absl::InternalError("oneDNN: status " + std::to_string(static_cast<int>(status)) +
                                 " from a 16x16x16 product");
    }
  }
  return absl::OkStatus();
}

bool GemmHonoursChain() {
  static const bool honours = CheckChain();
  return honours;
}

}  // namespace attnd::engine
