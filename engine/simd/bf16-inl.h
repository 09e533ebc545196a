// bfloat16 bit patterns in and out of f32 vectors. Compiled once per instruction set.
#if defined(ATTND_ENGINE_SIMD_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_ENGINE_SIMD_BF16_INL_H_
#undef ATTND_ENGINE_SIMD_BF16_INL_H_
#else
#define ATTND_ENGINE_SIMD_BF16_INL_H_
#endif

#include <bit>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Elements as an f32 vector, from either storage type, so that a loop is written once for both.
template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> LoadF32(D d, const std::uint16_t* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> du16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, from))));
}

// Rounds to nearest, ties to even: half a unit minus the tie, plus one if the kept part is odd. A
// NaN would round to infinity or wrap around, so it is made quiet instead.
template <class D>
HWY_INLINE void StoreBf16(D /*d*/, hn::Vec<D> v, std::uint16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<std::uint16_t, D> du16;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFU)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000U));
  const auto kept = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
  const hn::RebindToSigned<D> di;
  // Below 2^16, so the saturating conversion keeps it.
  hn::StoreU(hn::DemoteTo(du16, hn::BitCast(di, hn::ShiftRight<16>(kept))), du16, to);
}

// The same for one element.
HWY_INLINE std::uint16_t Bf16Bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
  return static_cast<std::uint16_t>((x != x ? bits | 0x400000U : rounded) >> 16U);
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
