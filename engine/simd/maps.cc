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
#include "hwy/contrib/math/math-inl.h"
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

void ExpImpl(const float* x, float* y, std::int64_t n) {
  const F32 d;
  Map(x, y, n, [d](VF32 v) HWY_ATTR { return ExpUpTo87(d, v); });
}

void EluPlusOneImpl(const float* x, float* y, std::int64_t n) {
  const F32 d;
  Map(x, y, n, [d](VF32 v) HWY_ATTR {
    const VF32 zero = hn::Zero(d);
    return hn::IfThenElse(hn::Gt(v, zero), hn::Add(v, hn::Set(d, 1.0F)), ExpUpTo87(d, v));
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

void ExpShiftedImpl(const float* x, float shift, float rest, float* y, std::int64_t n) {
  const F32 d;
  const VF32 shifts = hn::Set(d, shift);
  const VF32 rests = hn::Set(d, rest);
  Map(x, y, n, [d, shifts, rests](VF32 v) HWY_ATTR {
    const VF32 shifted = hn::Add(hn::Sub(v, shifts), rests);
    // A select and not Min, which may lose a NaN.
    return ExpUpTo87(d, hn::IfThenZeroElse(hn::Gt(shifted, hn::Zero(d)), shifted));
  });
}

void CosSinImpl(const float* x, float* cosine, float* sine, std::int64_t n) {
  const F32 d;
  Map(x, cosine, n, [d](VF32 v) HWY_ATTR { return hn::Cos(d, v); });
  Map(x, sine, n, [d](VF32 v) HWY_ATTR { return hn::Sin(d, v); });
}

float MaxOfImpl(const float* x, std::int64_t n) {
  const F32 d;
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  VF32 max = hn::Set(d, kLowest);
  VF32 sum = hn::Zero(d);  // finds NaNs, which a maximum may lose
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VF32 v = hn::LoadU(d, x + i);
    max = hn::Max(max, v);
    sum = hn::Add(sum, hn::Sub(v, v));
  }
  float largest = hn::GetLane(hn::MaxOfLanes(d, max));
  float nan = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) {
    largest = std::max(largest, x[i]);
    nan += x[i] - x[i];
  }
  return nan == 0.0F ? largest : std::numeric_limits<float>::quiet_NaN();
}

// In 16 lanes on every instruction set: two vectors of AVX2 or one of AVX-512.
float SumOfImpl(const float* x, std::int64_t n) {
  const F32 d;
  const hn::CappedTag<float, 8> d8;
  const hn::Full128<float> d4;
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  constexpr std::int64_t kSumLanes = 16;
  alignas(64) float lanes[kSumLanes];
  VF32 low = hn::Zero(d);
  VF32 high = hn::Zero(d);  // stays 0 where one vector is all lanes
  const auto add = [&](const float* from) HWY_ATTR {
    low = hn::Add(low, hn::LoadU(d, from));
    if constexpr (kLanes < kSumLanes) high = hn::Add(high, hn::LoadU(d, from + kLanes));
  };
  std::int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) add(x + i);
  if (i < n) {
    // Adding 0 changes no lane: none is -0.
    std::fill_n(lanes, kSumLanes, 0.0F);
    std::memcpy(lanes, x + i, static_cast<std::size_t>(n - i) * sizeof(float));
    add(lanes);
  }
  hn::Store(low, d, lanes);
  if constexpr (kLanes < kSumLanes) hn::Store(high, d, lanes + kLanes);
  const auto eight = hn::Add(hn::Load(d8, lanes), hn::Load(d8, lanes + 8));
  const auto four = hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
  return hn::GetLane(hn::SumOfLanes(d4, four));
}

void ScaleRowImpl(const float* x, float s, float* y, std::int64_t n) {
  const F32 d;
  const VF32 factor = hn::Set(d, s);
  Map(x, y, n, [factor](VF32 v) HWY_ATTR { return hn::Mul(v, factor); });
}

// y = f(x1, x2), as Map().
template <class Function>
HWY_INLINE void Map2(const float* x1, const float* x2, float* y, std::int64_t n,
                     const Function& f) {
  const F32 d;
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(f(hn::LoadU(d, x1 + i), hn::LoadU(d, x2 + i)), d, y + i);
  }
  if (i < n) {
    alignas(64) float rest1[kLanes] = {};
    alignas(64) float rest2[kLanes] = {};
    const std::size_t bytes = static_cast<std::size_t>(n - i) * sizeof(float);
    std::memcpy(rest1, x1 + i, bytes);
    std::memcpy(rest2, x2 + i, bytes);
    hn::Store(f(hn::Load(d, rest1), hn::Load(d, rest2)), d, rest1);
    std::memcpy(y + i, rest1, bytes);
  }
}

void ScaleByExpImpl(const float* x, const float* log_factor, float* y, std::int64_t n) {
  const F32 d;
  Map2(x, log_factor, y, n,
       [d](VF32 v, VF32 log) HWY_ATTR { return hn::Mul(v, ExpUpTo87(d, log)); });
}

void AddRowImpl(const float* x, float* sum, std::int64_t n) {
  Map2(x, sum, sum, n, [](VF32 v, VF32 s) HWY_ATTR { return hn::Add(s, v); });
}

void PairProductsImpl(const float* x, std::int64_t n, float* y) {
  const F32 d;
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  for (; n >= kLanes; ++x, y += n, --n) {
    const VF32 factor = hn::Set(d, *x);
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(factor, hn::LoadU(d, x + i)), d, y + i);
    // The last vector once more, ending where the row ends.
    if (i < n) {
      i = n - kLanes;
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, x + i)), d, y + i);
    }
  }
  for (; n > 0; ++x, y += n, --n) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = *x * x[i];
  }
}

// The largest bit pattern without the sign: an order in which finite < infinity < NaN, and exact in
// any order of evaluation.
std::int32_t MaxMagnitude(const float* x, std::int64_t n) {
  const F32 df;
  const hn::RebindToSigned<F32> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(F32());
  constexpr std::int32_t kMask = std::numeric_limits<std::int32_t>::max();
  const auto mask = hn::Set(d, kMask);
  auto max0 = hn::Zero(d);
  auto max1 = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    max0 = hn::Max(max0, hn::And(hn::BitCast(d, hn::LoadU(df, x + i)), mask));
    max1 = hn::Max(max1, hn::And(hn::BitCast(d, hn::LoadU(df, x + i + kLanes)), mask));
  }
  std::int32_t max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  for (; i < n; ++i) max = std::max(max, std::bit_cast<std::int32_t>(x[i]) & kMask);
  return max;
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(ExpImpl);
HWY_EXPORT(EluPlusOneImpl);
HWY_EXPORT(ReluImpl);
HWY_EXPORT(SquaredReluImpl);
HWY_EXPORT(ExpShiftedImpl);
HWY_EXPORT(CosSinImpl);
HWY_EXPORT(MaxOfImpl);
HWY_EXPORT(SumOfImpl);
HWY_EXPORT(ScaleRowImpl);
HWY_EXPORT(ScaleByExpImpl);
HWY_EXPORT(AddRowImpl);
HWY_EXPORT(PairProductsImpl);
HWY_EXPORT(MaxMagnitude);

void Exp(const float* x, float* y, std::int64_t n) { HWY_DYNAMIC_DISPATCH(ExpImpl)(x, y, n); }

void EluPlusOne(const float* x, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(EluPlusOneImpl)(x, y, n);
}

void Relu(const float* x, float eps, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(ReluImpl)(x, eps, y, n);
}

void SquaredRelu(const float* x, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(SquaredReluImpl)(x, y, n);
}

void ExpShifted(const float* x, float shift, float rest, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(ExpShiftedImpl)(x, shift, rest, y, n);
}

void CosSin(const float* x, float* cosine, float* sine, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(CosSinImpl)(x, cosine, sine, n);
}

float MaxOf(const float* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(MaxOfImpl)(x, n); }

float SumOf(const float* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(SumOfImpl)(x, n); }

void ScaleRow(const float* x, float s, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleRowImpl)(x, s, y, n);
}

void ScaleByExp(const float* x, const float* log_factor, float* y, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleByExpImpl)(x, log_factor, y, n);
}

void AddRow(const float* x, float* sum, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddRowImpl)(x, sum, n);
}

void PairProducts(const float* x, std::int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(PairProductsImpl)(x, n, y);
}

float MaxAbs(const float* x, std::int64_t n) {
  return std::bit_cast<float>(HWY_DYNAMIC_DISPATCH(MaxMagnitude)(x, n));
}

bool AllFinite(const float* x, std::int64_t n) {
  constexpr std::int32_t kInfinity = 0x7F800000;
  return HWY_DYNAMIC_DISPATCH(MaxMagnitude)(x, n) < kInfinity;
}

}  // namespace attnd::engine
#endif
