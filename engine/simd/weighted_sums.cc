#include "engine/simd/weighted_sums.h"

#include <cmath>
#include <cstdint>

#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/weighted_sums.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F64x4 = hn::CappedTag<double, 4>;
using F32x4 = hn::Rebind<float, F64x4>;
using V = hn::Vec<F64x4>;
constexpr std::int64_t kLanes = 4;

HWY_INLINE V Load(const double* from) { return hn::LoadU(F64x4(), from); }
HWY_INLINE V Load(const float* from) { return hn::PromoteTo(F64x4(), hn::LoadU(F32x4(), from)); }

void AddOneRowImpl(const double* x, double weight, double* sums, std::int64_t n) {
  const F64x4 d;
  const V factor = hn::Set(d, weight);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::MulAdd(factor, Load(x + i), Load(sums + i)), d, sums + i);
  }
  for (; i < n; ++i) sums[i] = std::fma(weight, x[i], sums[i]);
}

void AddTwoRowsImpl(const float* x, double slope, const float* y, double weight, double* sums,
                    std::int64_t n) {
  const F64x4 d;
  const V factor = hn::Set(d, weight);
  const V of_y = hn::Set(d, slope);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const V row = hn::MulAdd(of_y, Load(y + i), Load(x + i));
    hn::StoreU(hn::MulAdd(factor, row, Load(sums + i)), d, sums + i);
  }
  for (; i < n; ++i) {
    const double row = std::fma(slope, static_cast<double>(y[i]), static_cast<double>(x[i]));
    sums[i] = std::fma(weight, row, sums[i]);
  }
}

void ScaleImpl(double factor, double* sums, std::int64_t n) {
  const F64x4 d;
  const V factors = hn::Set(d, factor);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(hn::Mul(factors, Load(sums + i)), d, sums + i);
  for (; i < n; ++i) sums[i] *= factor;
}

double SquaredDifferenceImpl(const double* x, double weight, const double* y, double scale,
                             const double* z, std::int64_t n) {
  const F64x4 d;
  const V weights = hn::Set(d, weight);
  const V scales = hn::Set(d, scale);
  V even = hn::Zero(d);
  V odd = hn::Zero(d);
  const auto add = [=](std::int64_t i, V sum) HWY_ATTR {
    const V off = hn::MulSub(scales, hn::MulAdd(weights, Load(y + i), Load(x + i)), Load(z + i));
    return hn::MulAdd(off, off, sum);
  };
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even = add(i, even);
    odd = add(i + kLanes, odd);
  }
  double rest = 0.0;
  for (; i < n; ++i) {
    const double off = std::fma(scale, std::fma(weight, y[i], x[i]), -z[i]);
    rest = std::fma(off, off, rest);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))) + rest;
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(AddOneRowImpl);
HWY_EXPORT(AddTwoRowsImpl);
HWY_EXPORT(ScaleImpl);
HWY_EXPORT(SquaredDifferenceImpl);

void AddWeighted(const double* x, double weight, double* sums, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddOneRowImpl)(x, weight, sums, n);
}

void AddWeighted(const float* x, double slope, const float* y, double weight, double* sums,
                 std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddTwoRowsImpl)(x, slope, y, weight, sums, n);
}

void ScaleSums(double factor, double* sums, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleImpl)(factor, sums, n);
}

double SquaredDifference(const double* x, double weight, const double* y, double scale,
                         const double* z, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SquaredDifferenceImpl)(x, weight, y, scale, z, n);
}

}  // namespace attnd::engine
#endif
