// Conversions between f32 and the 16-bit types, which are held as their bit patterns (IEEE binary16
// and bfloat16). Arrays do not overlap, n may be 0, no alignment is required. Thread-safe; cannot
// fail. Same bits on every instruction set.
#ifndef ATTND_ENGINE_SIMD_CONVERT_H_
#define ATTND_ENGINE_SIMD_CONVERT_H_

#include <cstdint>

namespace attnd::engine {

// Exact. A NaN stays a NaN (a signalling binary16 NaN may become quiet).
void F16ToF32(const std::uint16_t* x, float* y, std::int64_t n);
void Bf16ToF32(const std::uint16_t* x, float* y, std::int64_t n);

// Round to nearest, ties to even. False if a finite element became infinite (|x| >= 65520 for
// binary16, within half a unit of f32's largest for bfloat16); the output is complete all the same.
// Infinities and NaNs keep their kind and do not count.
bool F32ToF16(const float* x, std::uint16_t* y, std::int64_t n);
bool F32ToBf16(const float* x, std::uint16_t* y, std::int64_t n);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_CONVERT_H_
