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

void AddToTotalsImpl(const float* block, double factor, double* totals, std::int64_t n) {
  const F64 d;
  const F32Half d32;
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto scaled = hn::Mul(hn::PromoteTo(d, hn::LoadU(d32, block + i)), hn::Set(d, factor));
    hn::StoreU(hn::Add(hn::LoadU(d, totals + i), scaled), d, totals + i);
  }
  for (; i < n; ++i) totals[i] += static_cast<double>(block[i]) * factor;
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
HWY_EXPORT(AddToTotalsImpl);
HWY_EXPORT(RoundTotalsImpl);

void AddToTotals(const float* block, double factor, double* totals, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(AddToTotalsImpl)(block, factor, totals, n);
}

float RoundTotals(const double* totals, float* out, std::int64_t n) {
  HWY_DYNAMIC_DISPATCH(RoundTotalsImpl)(totals, out, n);
  return MaxAbs(out, n);
}

}  // namespace attnd::engine
#endif
