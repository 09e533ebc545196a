#include "engine/linear/row_loops.h"

#include <cstddef>
#include <cstring>

#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/linear/row_loops.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;

void ColumnSumsImpl(const float* x, std::size_t rows, std::size_t n, float* sums) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  // Four independent chains hide the latency of an addition.
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    auto s0 = hn::Zero(d);
    auto s1 = hn::Zero(d);
    auto s2 = hn::Zero(d);
    auto s3 = hn::Zero(d);
    for (std::size_t r = 0; r < rows; ++r) {
      const float* row = x + r * n + i;
      s0 = hn::Add(s0, hn::LoadU(d, row));
      s1 = hn::Add(s1, hn::LoadU(d, row + lanes));
      s2 = hn::Add(s2, hn::LoadU(d, row + 2 * lanes));
      s3 = hn::Add(s3, hn::LoadU(d, row + 3 * lanes));
    }
    hn::StoreU(s0, d, sums + i);
    hn::StoreU(s1, d, sums + i + lanes);
    hn::StoreU(s2, d, sums + i + 2 * lanes);
    hn::StoreU(s3, d, sums + i + 3 * lanes);
  }
  for (; i + lanes <= n; i += lanes) {
    auto s = hn::Zero(d);
    for (std::size_t r = 0; r < rows; ++r) s = hn::Add(s, hn::LoadU(d, x + r * n + i));
    hn::StoreU(s, d, sums + i);
  }
  for (; i < n; ++i) {
    float s = 0;
    for (std::size_t r = 0; r < rows; ++r) s += x[r * n + i];
    sums[i] = s;
  }
}

void KeepColumnsImpl(std::uint64_t keep, std::size_t n, float* scores) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const std::uint64_t shifted = keep >> i;
    std::uint8_t bits[sizeof(shifted)];
    std::memcpy(bits, &shifted, sizeof(shifted));
    const auto mask = hn::LoadMaskBits(d, bits);
    hn::StoreU(hn::IfThenElseZero(mask, hn::LoadU(d, scores + i)), d, scores + i);
  }
  for (; i < n; ++i) {
    if (((keep >> i) & 1) == 0) scores[i] = 0.0F;
  }
}

void MultiplyRowImpl(const float* x, std::size_t n, float* y) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + i), hn::LoadU(d, x + i)), d, y + i);
  }
  for (; i < n; ++i) y[i] *= x[i];
}

bool DivideRowImpl(const float* x, float divisor, std::size_t n, float* y) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, divisor);
  const auto zero = hn::Zero(d);
  // 0 * y is 0 where y is finite and NaN elsewhere, and a NaN stays in the sum.
  auto poison = hn::Zero(d);
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto quotient = hn::Add(hn::Div(hn::LoadU(d, x + i), by), zero);
    poison = hn::MulAdd(quotient, zero, poison);
    hn::StoreU(quotient, d, y + i);
  }
  float rest = hn::GetLane(hn::SumOfLanes(d, poison));
  for (; i < n; ++i) {
    const float quotient = x[i] / divisor + 0.0F;
    rest += quotient * 0.0F;
    y[i] = quotient;
  }
  return rest == 0.0F;
}

}  // namespace
}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {

HWY_EXPORT(ColumnSumsImpl);
HWY_EXPORT(KeepColumnsImpl);
HWY_EXPORT(MultiplyRowImpl);
HWY_EXPORT(DivideRowImpl);

void ColumnSums(const float* x, std::int64_t rows, std::int64_t n, float* sums) {
  HWY_DYNAMIC_DISPATCH(ColumnSumsImpl)
  (x, static_cast<std::size_t>(rows), static_cast<std::size_t>(n), sums);
}

void KeepColumns(std::uint64_t keep, std::int64_t n, float* scores) {
  HWY_DYNAMIC_DISPATCH(KeepColumnsImpl)(keep, static_cast<std::size_t>(n), scores);
}

void MultiplyRow(const float* x, std::int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(MultiplyRowImpl)(x, static_cast<std::size_t>(n), y);
}

bool DivideRow(const float* x, float divisor, std::int64_t n, float* y) {
  return HWY_DYNAMIC_DISPATCH(DivideRowImpl)(x, divisor, static_cast<std::size_t>(n), y);
}

}  // namespace attnd::engine
#endif  // HWY_ONCE
