#include "engine/simd/totals.h"

#include <cstdint>

#include "engine/simd/maps.h"
#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/totals.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F64 = hn::ScalableTag<double>;
using F32Half = hn::Rebind<float, F64>;
constexpr std::int64_t kLanes = hn::MaxLanes(F64());

HWY_INLINE hn::Vec<F64> Load(const double* from) { return hn::LoadU(F64(), from); }
HWY_INLINE hn::Vec<F64> Load(const float* from) {
  return hn::PromoteTo(F64(), hn::LoadU(F32Half(), from));
}

template <typename Element>
void AddLoop(const Element* block, double factor, double* totals, std::int64_t n) {
  const F64 d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto scaled = hn::Mul(Load(block + i), hn::Set(d, factor));
    hn::StoreU(hn::Add(hn::LoadU(d, totals + i), scaled), d, totals + i);
  }
  for (; i < n; ++i) totals[i] += static_cast<double>(block[i]) * factor;
}

template <typename Element>
void SumLoop(const Element* a, double a_factor, const Element* b, double b_factor, double* out,
             std::int64_t n) {
  const F64 d;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto left = hn::Mul(Load(a + i), hn::Set(d, a_factor));
    const auto right = hn::Mul(Load(b + i), hn::Set(d, b_factor));
    hn::StoreU(hn::Add(left, right), d, out + i);
  }
  for (; i < n; ++i) {
    const double left = static_cast<double>(a[i]) * a_factor;
    const double right = static_cast<double>(b[i]) * b_factor;
    out[i] = left + right;
  }
}

void AddBlockImpl(const float* block, double factor, double* totals, std::int64_t n) {
  AddLoop(block, factor, totals, n);
}
void AddTotalsImpl(const double* other, double factor, double* totals, std::int64_t n) {
  AddLoop(other, factor, totals, n);
}
void SumBlocksImpl(const float* a, double a_factor, const float* b, double b_factor, double* out,
                   std::int64_t n) {
  SumLoop(a, a_factor, b, b_factor, out, n);
}
void SumTotalsImpl(const double* a, double a_factor, const double* b, double b_factor, double* out,
                   std::int64_t n) {
  SumLoop(a, a_factor, b, b_factor, out, n);
}

void RoundTotalsImpl(const double* totals, float* out, std::int64_t n) {
  const F64 d;
  const F32Half d32;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    hn::StoreU(hn::DemoteTo(d32, hn::LoadU(d, totals + i)), d32, out + i);
  for (; i < n; ++i) out[i] = static_cast<float>(totals[i]);
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(AddBlockImpl);
HWY_EXPORT(AddTotalsImpl);
HWY_EXPORT(SumBlocksImpl);
HWY_EXPORT(SumTotalsImpl);
HWY_EXPORT(RoundTotalsImpl);

void AddToTotals(const float* block, double factor, double* totals, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddBlockImpl)(block, factor, totals, n);
}

void AddToTotals(const double* other, double factor, double* totals, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddTotalsImpl)(other, factor, totals, n);
}

void SumTotals(const float* a, double a_factor, const float* b, double b_factor, double* out,
               std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(SumBlocksImpl)(a, a_factor, b, b_factor, out, n);
}

void SumTotals(const double* a, double a_factor, const double* b, double b_factor, double* out,
               std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(SumTotalsImpl)(a, a_factor, b, b_factor, out, n);
}

float RoundTotals(const double* totals, float* out, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(RoundTotalsImpl)(totals, out, n);
  return MaxAbs(out, n);
}

}  // namespace attnd::engine
#endif
