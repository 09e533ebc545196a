#include "engine/simd/convert.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/convert.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "engine/simd/bf16-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;
constexpr std::int64_t kLanes = hn::MaxLanes(F32());

// y = f(x) for vectors of kLanes elements; the last, incomplete one goes through buffers filled
// with zeros.
template <class From, class To, class Function>
HWY_INLINE void Convert(const From* x, To* y, std::int64_t n, const Function& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(x + i, y + i);
  if (i < n) {
    From from[kLanes] = {};
    To to[kLanes];
    const auto rest = static_cast<std::size_t>(n - i);
    std::memcpy(from, x + i, rest * sizeof(From));
    f(from, to);
    std::memcpy(y + i, to, rest * sizeof(To));
  }
}

void F16ToF32Impl(const std::uint16_t* x, float* y, std::int64_t n) {
  const F32 d;
  const hn::Rebind<hwy::float16_t, F32> d16;
  const hn::RebindToUnsigned<decltype(d16)> du16;
  Convert(x, y, n, [&](const std::uint16_t* from, float* to) HWY_ATTR {
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(d16, hn::LoadU(du16, from))), d, to);
  });
}

void Bf16ToF32Impl(const std::uint16_t* x, float* y, std::int64_t n) {
  const F32 d;
  Convert(x, y, n, [d](const std::uint16_t* from, float* to) HWY_ATTR {
    hn::StoreU(LoadF32(d, from), d, to);
  });
}

// Whether the rounding made an infinity of a finite element is seen from the largest finite |x|
// alone: rounding is monotone.
HWY_INLINE VF32 FiniteMagnitude(F32 d, VF32 v) {
  const VF32 magnitude = hn::Abs(v);
  return hn::IfThenElseZero(hn::Lt(magnitude, hn::Inf(d)), magnitude);
}

bool F32ToF16Impl(const float* x, std::uint16_t* y, std::int64_t n) {
  const F32 d;
  const hn::Rebind<hwy::float16_t, F32> d16;
  const hn::RebindToUnsigned<decltype(d16)> du16;
  VF32 largest = hn::Zero(d);
  Convert(x, y, n, [&](const float* from, std::uint16_t* to) HWY_ATTR {
    const VF32 v = hn::LoadU(d, from);
    largest = hn::Max(largest, FiniteMagnitude(d, v));
    hn::StoreU(hn::BitCast(du16, hn::DemoteTo(d16, v)), du16, to);
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest)) < 65520.0F;
}

bool F32ToBf16Impl(const float* x, std::uint16_t* y, std::int64_t n) {
  const F32 d;
  VF32 largest = hn::Zero(d);
  Convert(x, y, n, [&](const float* from, std::uint16_t* to) HWY_ATTR {
    const VF32 v = hn::LoadU(d, from);
    largest = hn::Max(largest, FiniteMagnitude(d, v));
    StoreBf16(d, v, to);
  });
  return hn::GetLane(hn::MaxOfLanes(d, largest)) < 0x1.FFp127F;
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(F16ToF32Impl);
HWY_EXPORT(Bf16ToF32Impl);
HWY_EXPORT(F32ToF16Impl);
HWY_EXPORT(F32ToBf16Impl);

void F16ToF32(const std::uint16_t* x, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(F16ToF32Impl)(x, y, n);
}

void Bf16ToF32(const std::uint16_t* x, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(Bf16ToF32Impl)(x, y, n);
}

bool F32ToF16(const float* x, std::uint16_t* y, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(F32ToF16Impl)(x, y, n);
}

bool F32ToBf16(const float* x, std::uint16_t* y, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(F32ToBf16Impl)(x, y, n);
}

}  // namespace attnd::engine
#endif
