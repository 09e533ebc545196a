// The one door to oneDNN: f32 matrix products whose every output element is defined bit for bit.
//
// Chain contract. For one panel of at most kGemmInnerPanel inner indices, element (i, j) is the
// sequential chain
//   s = 0; for k ascending: s = fma(a(i, k), b(k, j), s),
// and a product is the panels in ascending order: C = s_0 (C + s_0 when accumulating), then C = C +
// s_1, ... The bits of a row therefore depend neither on the other rows of the call nor on their
// number, and a hand-written loop (engine/simd/one_query.h) or a plain scalar loop
// (engine/ref_gemm.h) gives the same bits.
//
// dnnl_sgemm promises nothing of the kind. oneDNN 2.6.3 was measured to keep it only for the closed
// list of shapes below (tests/engine/gemm_test.cc repeats the measurement under AVX2 and AVX-512);
// this file refuses other shapes in debug builds. GemmHonoursChain() repeats a small part of the
// measurement on the machine that runs.
//
// Threads: every function may be called from any thread at any time; products run on the calling
// thread only. Failure: if oneDNN refuses a call (memory for its code or its packing buffers), the
// reference computes the product.
#ifndef ATTND_ENGINE_GEMM_H_
#define ATTND_ENGINE_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"

namespace attnd::engine {

// The row counts that a product may have. Callers pad to one of them: rows of A up to it must be
// readable (any values), rows of C writable.
inline constexpr std::int64_t kGemmRowBuckets[] = {4, 16, 64, 192};
inline constexpr std::int64_t kGemmMaxRows = 192;

// The number of columns is a multiple of this.
inline constexpr std::int64_t kGemmColumnMultiple = 16;

// Longer inner dimensions are split in panels of this many.
inline constexpr std::int64_t kGemmInnerPanel = 256;

// The largest inner dimension of GemmTN: one block of tokens.
inline constexpr std::int64_t kGemmFoldRows = 64;

// The smallest bucket that holds m rows. Requires 1 <= m <= kGemmMaxRows; callers tile longer
// inputs by kGemmMaxRows.
std::int64_t GemmPaddedRows(std::int64_t m);

// C [m x n] = A [m x k] * B [k x n], plus the old C when `accumulate`. Row-major, leading
// dimensions in elements. Requires m in kGemmRowBuckets, n > 0 a multiple of kGemmColumnMultiple, k
// >= 1, lda >= k, ldb >= n, ldc >= n; C overlaps neither A nor B.
void GemmNN(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
            const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc);

// C [m x n] = A^T * B for A [k x m] and B [k x n], plus the old C when `accumulate`: the fold of
// one block of k tokens. Requires m > 0 a multiple of 16, n as in GemmNN, 1 <= k <= kGemmFoldRows,
// lda >= m, ldb >= n, ldc >= n.
void GemmTN(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
            const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc);

// Prepares the calling thread: one OpenMP thread (the setting belongs to the calling thread) and
// oneDNN's kernels generated, which costs milliseconds once per process. Optional, the first
// product of a thread does it too; a worker calls it so that no request pays for it.
// RESOURCE_EXHAUSTED or INTERNAL when oneDNN cannot run a product at all.
absl::Status GemmInitThread();

// Whether this oneDNN on this processor gives the chain's bits, checked once per process on a few
// shapes per row bucket of both products, at places spread over them, then cached. Takes a
// millisecond where oneDNN's kernels have been generated before. When false, results
// are still correct to rounding, but a one-query loop must not stand in for a product: such callers
// use GemmNN with 4 rows instead.
bool GemmHonoursChain();

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_GEMM_H_
