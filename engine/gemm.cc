#include "engine/gemm.h"

#include <dnnl.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
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

using Product = void (*)(std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                         std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate,
                         float* c, std::int64_t ldc);

// Every 11th index and the last: an odd step meets every place within a vector or a kernel's tile.
std::vector<std::int64_t> CheckPlaces(std::int64_t size) {
  std::vector<std::int64_t> places;
  for (std::int64_t place = 0; place < size - 1; place += 11) places.push_back(place);
  places.push_back(size - 1);
  return places;
}

// The largest product that is checked.
constexpr std::int64_t kCheckColumns = 80;
constexpr std::int64_t kCheckInner = 260;

struct CheckInputs {
  const std::vector<float> a = CheckValues(kGemmMaxRows * kCheckInner, 1);
  const std::vector<float> b = CheckValues(kCheckInner * kCheckColumns, 2);
  const std::vector<float> c = CheckValues(kGemmMaxRows * kCheckColumns, 3);
};

// Compares elements spread over the product: all of them would take 10 milliseconds.
bool HonoursChain(const CheckInputs& inputs, Product product, Product reference, bool transposed,
                  std::int64_t m, std::int64_t n, std::int64_t k) {
  std::vector<float> c(inputs.c.begin(), inputs.c.begin() + m * n);
  const std::int64_t lda = transposed ? m : k;
  product(m, n, k, inputs.a.data(), lda, inputs.b.data(), n, true, c.data(), n);
  for (const std::int64_t i : CheckPlaces(m)) {
    const float* row = inputs.a.data() + (transposed ? i : i * k);
    for (const std::int64_t j : CheckPlaces(n)) {
      const auto at = static_cast<std::size_t>(i * n + j);
      float expected = inputs.c[at];
      reference(1, 1, k, row, lda, inputs.b.data() + j, n, true, &expected, 1);
      if (std::bit_cast<std::uint32_t>(c[at]) != std::bit_cast<std::uint32_t>(expected)) {
        return false;
      }
    }
  }
  return true;
}

bool CheckChain() {
  const CheckInputs inputs;
  for (const std::int64_t m : kGemmRowBuckets) {
    if (!HonoursChain(inputs, GemmNN, RefGemmNN, false, m, kCheckColumns, kCheckInner))
      return false;
    // A block of 64 tokens, and the open one as wide as linear attention needs it.
    for (const std::int64_t tokens : {16, 32, 48, 64}) {
      if (!HonoursChain(inputs, GemmNN, RefGemmNN, false, m, tokens, 64)) return false;
      if (!HonoursChain(inputs, GemmNN, RefGemmNN, false, m, kCheckColumns, tokens)) return false;
    }
  }
  for (const std::int64_t m : {16, 32, 48, 64, 192}) {
    if (!HonoursChain(inputs, GemmTN, RefGemmTN, true, m, kCheckColumns, kGemmFoldRows))
      return false;
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
