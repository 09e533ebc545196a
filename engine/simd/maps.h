// Elementwise loops over f32 rows: exp, feature maps of linear attention, scaling, and finiteness
// checks. Unless stated otherwise an output may be the same array as its input (not partly
// overlapping), n may be 0, and no alignment is required. An element's bits do not depend on n or
// on its place, nor on the instruction set. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_MAPS_H_
#define ATTND_ENGINE_SIMD_MAPS_H_

#include <cstdint>

namespace attnd::engine {

// y = exp(x) for x <= 87: at most 2 ulp from the true value for x >= -87.33; 0 below; exactly 1 at
// 0. NaN gives NaN, x > 87 a meaningless number. The bits are part of exact attention's answers.
void Exp(const float* x, float* y, std::int64_t n);

// y = x + 1 for x > 0, exp(x) otherwise: elu(x) + 1 of Katharopoulos et al. 2020 (arXiv:2006.16236,
// eq. 7), without the cancellation of expm1(x) + 1. At most 2 ulp from the true value for x >=
// -87.33; 0 below. NaN gives NaN.
void EluPlusOne(const float* x, float* y, std::int64_t n);

// y = max(x, 0) + eps. NaN gives NaN.
void Relu(const float* x, float eps, float* y, std::int64_t n);

// y = max(x, 0)^2. NaN gives NaN; overflows to +inf for x > 1.8e19.
void SquaredRelu(const float* x, float* y, std::int64_t n);

// y = exp(min((x - shift) + rest, 0)), with the error of Exp. NaN gives NaN.
void ExpShifted(const float* x, float shift, float rest, float* y, std::int64_t n);

// cosine = cos(x), sine = sin(x): at most 3 ulp of 1 from the true values for |x| <= kMaxAngle,
// meaningless beyond. The outputs do not overlap the input.
inline constexpr float kMaxAngle = 39000.0F;
void CosSin(const float* x, float* cosine, float* sine, std::int64_t n);

// The largest element, -inf for n = 0. NaN if any element is NaN or infinite.
float MaxOf(const float* x, std::int64_t n);

// The sum: number j in lane j mod 16 in order, then the lanes in halves. 0 for n = 0.
float SumOf(const float* x, std::int64_t n);

// y = s * x.
void ScaleRow(const float* x, float s, float* y, std::int64_t n);

// y = x * exp(log_factor), element by element, for log_factor <= 0, with the error of Exp.
void ScaleByExp(const float* x, const float* log_factor, float* y, std::int64_t n);

// sum = sum + x, element by element.
void AddRow(const float* x, float* sum, std::int64_t n);

// The products x_a x_b for a <= b, a ascending, then b: n (n + 1) / 2 numbers. The output does not
// overlap the input.
void PairProducts(const float* x, std::int64_t n, float* y);

// max |x_i|, 0 for n = 0. NaN if any element is NaN, so that !(MaxAbs <= limit) catches everything.
float MaxAbs(const float* x, std::int64_t n);

// Whether no element is infinite or NaN.
bool AllFinite(const float* x, std::int64_t n);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_MAPS_H_
