// The slow and obvious definition of the products in engine/gemm.h: what the chain contract means,
// in scalar code. Tests hold the door against it; the door falls back to it when oneDNN refuses a
// call. Thread-safe, cannot fail.
#ifndef ATTND_ENGINE_REF_GEMM_H_
#define ATTND_ENGINE_REF_GEMM_H_

#include <cstdint>

namespace attnd::engine {

// As GemmNN, for any m, n, k >= 1.
void RefGemmNN(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
               const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc);

// As GemmTN, for any m, n, k >= 1.
void RefGemmTN(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, std::int64_t lda,
               const float* b, std::int64_t ldb, bool accumulate, float* c, std::int64_t ldc);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_REF_GEMM_H_
