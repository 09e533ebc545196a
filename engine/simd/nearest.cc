#include "engine/simd/nearest.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/nearest.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32x8 = hn::CappedTag<float, 8>;
constexpr std::int64_t kLanes = 8;
constexpr float kLowest = -std::numeric_limits<float>::infinity();

float DotImpl(const float* a, const float* b, std::int64_t n) {
  const F32x8 d;
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), even);
    odd = hn::MulAdd(hn::LoadU(d, a + i + kLanes), hn::LoadU(d, b + i + kLanes), odd);
  }
  float rest = 0.0F;
  for (; i < n; ++i) rest += a[i] * b[i];
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))) + rest;
}

float SquaredDistanceImpl(const float* a, const float* b, std::int64_t n) {
  const F32x8 d;
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const auto low = hn::Sub(hn::LoadU(d, a + i), hn::LoadU(d, b + i));
    const auto high = hn::Sub(hn::LoadU(d, a + i + kLanes), hn::LoadU(d, b + i + kLanes));
    even = hn::MulAdd(low, low, even);
    odd = hn::MulAdd(high, high, odd);
  }
  float rest = 0.0F;
  for (; i < n; ++i) rest += (a[i] - b[i]) * (a[i] - b[i]);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))) + rest;
}

std::int64_t IndexOfLargestImpl(const float* x, const float* bias, std::int64_t n) {
  const F32x8 d;
  auto largest = hn::Set(d, kLowest);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    largest = hn::Max(largest, hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, bias + i)));
  }
  float best = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < n; ++i) best = std::max(best, x[i] + bias[i]);
  const auto target = hn::Set(d, best);
  for (i = 0; i + kLanes <= n; i += kLanes) {
    const auto sum = hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, bias + i));
    const std::intptr_t lane = hn::FindFirstTrue(d, hn::Eq(sum, target));
    if (lane >= 0) return i + lane;
  }
  for (; i < n; ++i) {
    if (x[i] + bias[i] == best) return i;
  }
  return 0;
}

Nearest NearestOfImpl(const float* x, const float* bias, std::int64_t n) {
  const F32x8 d;
  alignas(32) float candidates[2 * kLanes];  // the largest two of each lane
  auto largest = hn::Set(d, kLowest);
  auto next = hn::Set(d, kLowest);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto v = hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, bias + i));
    next = hn::Max(next, hn::Min(v, largest));
    largest = hn::Max(v, largest);
  }
  hn::Store(largest, d, candidates);
  hn::Store(next, d, candidates + kLanes);
  float best = kLowest;
  float runner_up = kLowest;
  const auto offer = [&](float v) {
    runner_up = std::max(runner_up, std::min(v, best));
    best = std::max(v, best);
  };
  for (const float candidate : candidates) offer(candidate);
  for (; i < n; ++i) offer(x[i] + bias[i]);
  return {IndexOfLargestImpl(x, bias, n), runner_up == kLowest ? 0.0F : best - runner_up};
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(DotImpl);
HWY_EXPORT(SquaredDistanceImpl);
HWY_EXPORT(NearestOfImpl);
HWY_EXPORT(IndexOfLargestImpl);

float Dot(const float* a, const float* b, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(DotImpl)(a, b, n);
}

float SquaredDistance(const float* a, const float* b, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(SquaredDistanceImpl)(a, b, n);
}

Nearest NearestOf(const float* x, const float* bias, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(NearestOfImpl)(x, bias, n);
}

std::int64_t IndexOfLargest(const float* x, const float* bias, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(IndexOfLargestImpl)(x, bias, n);
}

}  // namespace attnd::engine
#endif
