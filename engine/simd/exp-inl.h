// exp for f32 vectors, for arguments whose exp is far from overflow. Compiled once per instruction
// set.
#if defined(ATTND_ENGINE_SIMD_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_ENGINE_SIMD_EXP_INL_H_
#undef ATTND_ENGINE_SIMD_EXP_INL_H_
#else
#define ATTND_ENGINE_SIMD_EXP_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(x) for x <= 87, exactly 1 at 0, 0 below -87.33654 (the smallest normal result), NaN for NaN.
// For x > 87 the result is meaningless, but no trap or slow path is taken.
//
// Cody & Waite: x = n ln 2 + t with |t| <= ln 2 / 2, exp(x) = 2^n exp(t). Adding kMagic rounds x /
// ln 2 to an integer in the low bits of the sum, with the exponent's bias already added, so that
// one shift makes 2^n. exp(t) is a minimax polynomial.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpUpTo87(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, 0x1.8000FEp23F);
  const V rounded = hn::MulAdd(x, hn::Set(d, 0x1.715476p+0F), magic);
  const V scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, rounded)));
  const V n = hn::Sub(rounded, magic);
  V t = hn::MulAdd(n, hn::Set(d, -0x1.62E400p-1F), x);
  t = hn::MulAdd(n, hn::Set(d, -0x1.7F7D1Cp-20F), t);
  V p = hn::Set(d, 0x1.0F9F9Cp-7F);
  p = hn::MulAdd(p, t, hn::Set(d, 0x1.573A1Ap-5F));
  p = hn::MulAdd(p, t, hn::Set(d, 0x1.555A80p-3F));
  p = hn::MulAdd(p, t, hn::Set(d, 0x1.FFFDC6p-2F));
  p = hn::MulAdd(p, t, hn::Set(d, 0x1.FFFFF6p-1F));
  p = hn::MulAdd(p, t, hn::Set(d, 1.0F));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -0x1.5D589Ep6F)), hn::Mul(p, scale));
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
