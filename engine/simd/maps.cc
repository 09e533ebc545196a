#include "engine/simd/maps.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/maps.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "engine/simd/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;

// y = f(x). The last, incomplete vector goes through a buffer, so that every element takes the same
// path.
template <class Function>
HWY_INLINE void Map(const float* x, float* y, std::int64_t n, const Function& f) {
  const F32 d;
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(hn::LoadU(d, x + i)), d, y + i);
  if (i < n) {
    alignas(64) float rest[kLanes] = {};
    const std::size_t bytes = static_cast<std::size_t>(n - i) * sizeof(float);
    std::memcpy(rest, x + i, bytes);
    hn::Store(f(hn::Load(d, rest)), d, rest);
    std::memcpy(y + i, rest, bytes);
  }
}

void EluPlusOneImpl(const float* x, float* y, std::int64_t n) {
  const F32 d;
  Map(x, y, n, [d](VF32 v) HWY_ATTR {
    const VF32 zero = hn::Zero(d);
    return hn::IfThenElse(hn::Gt(v, zero), hn::Add(v, hn::Set(d, 1.0F)), ExpNonPositive(d, v));
  });
}

void ReluImpl(const float* x, float eps, float* y, std::int64_t n) {
  const F32 d;
  const VF32 added = hn::Set(d, eps);
  Map(x, y, n, [d, added](VF32 v) HWY_ATTR {
    return hn::Add(hn::IfThenZeroElse(hn::Lt(v, hn::Zero(d)), v), added);
  });
}

void SquaredReluImpl(const float* x, float* y, std::int64_t n) {
  const F32 d;
  Map(x, y, n, [d](VF32 v) HWY_ATTR {
    const VF32 positive = hn::IfThenZeroElse(hn::Lt(v, hn::Zero(d)), v);
    return hn::Mul(positive, positive);
  });
}

void ScaleRowImpl(const float* x, float s, float* y, std::int64_t n) {
  const F32 d;
  const VF32 factor = hn::Set(d, s);
  Map(x, y, n, [factor](VF32 v) HWY_ATTR { return hn::Mul(v, factor); });
}

// The largest bit pattern without the sign: an order in which finite < infinity < NaN, and exact in
// any order of evaluation. T is float or the 16-bit pattern, Signed the signed integer of its size.
template <class Signed, class T>
HWY_INLINE Signed MaxMagnitude(const T* x, std::int64_t n) {
  const hn::ScalableTag<T> dt;
  const hn::RebindToSigned<decltype(dt)> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const auto mask = hn::Set(d, std::numeric_limits<Signed>::max());
  auto max0 = hn::Zero(d);
  auto max1 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    max0 = hn::Max(max0, hn::And(hn::BitCast(d, hn::LoadU(dt, x + i)), mask));
    max1 = hn::Max(max1, hn::And(hn::BitCast(d, hn::LoadU(dt, x + i + kLanes)), mask));
  }
  Signed max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  for (; i < n; ++i) {
    const auto bits = std::bit_cast<Signed>(x[i]);
    max = std::max(max, static_cast<Signed>(bits & std::numeric_limits<Signed>::max()));
  }
  return max;
}

std::int32_t MaxMagnitude32(const float* x, std::int64_t n) {
  return MaxMagnitude<std::int32_t>(x, n);
}
std::int16_t MaxMagnitude16(const std::uint16_t* x, std::int64_t n) {
  return MaxMagnitude<std::int16_t>(x, n);
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(EluPlusOneImpl);
HWY_EXPORT(ReluImpl);
HWY_EXPORT(SquaredReluImpl);
HWY_EXPORT(ScaleRowImpl);
HWY_EXPORT(MaxMagnitude32);
HWY_EXPORT(MaxMagnitude16);

namespace {

constexpr std::int32_t kInfinity32 = 0x7F800000;
constexpr std::int16_t kInfinity16 = 0x7C00;
constexpr std::int16_t kInfinityBf16 = 0x7F80;

}  // namespace

void EluPlusOne(const float* x, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(EluPlusOneImpl)(x, y, n);
}

void Relu(const float* x, float eps, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(ReluImpl)(x, eps, y, n);
}

void SquaredRelu(const float* x, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(SquaredReluImpl)(x, y, n);
}

void ScaleRow(const float* x, float s, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleRowImpl)(x, s, y, n);
}

float MaxAbs(const float* x, std::int64_t n) {
  return std::bit_cast<float>(HWY_DYNAMIC_DISPATCH(MaxMagnitude32)(x, n));
}

bool AllFinite(const float* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(MaxMagnitude32)(x, n) < kInfinity32;
}

bool AllFiniteF16(const std::uint16_t* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(MaxMagnitude16)(x, n) < kInfinity16;
}

bool AllFiniteBf16(const std::uint16_t* x, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(MaxMagnitude16)(x, n) < kInfinityBf16;
}

}  // namespace attnd::engine
#endif
