#include "engine/simd/row_lists.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "engine/simd/nearest.h"
#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/row_lists.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32x8 = hn::CappedTag<float, 8>;
using F64x4 = hn::CappedTag<double, 4>;
using F32x4 = hn::Rebind<float, F64x4>;
constexpr std::int64_t kLanes = 8;
constexpr std::int64_t kSumLanes = 4;

// How many rows before it is read a row is asked for.
constexpr std::int64_t kAhead = 4;

HWY_INLINE void AskForRow(const RowList& list, std::int64_t i) {
  PrefetchRow(list.row(std::min(i + kAhead, list.count - 1)), list.dim);
}

// Components [first, first + 4 kVectors), whose sums stay in registers.
template <std::size_t kVectors>
HWY_INLINE void SumColumns(const RowList& list, std::int64_t first, double* sums) {
  const F64x4 d;
  constexpr auto kCount = static_cast<std::int64_t>(kVectors);
  hn::Vec<F64x4> sum[kVectors];
  for (std::int64_t v = 0; v < kCount; ++v) sum[v] = hn::Zero(d);
  for (std::int64_t i = 0; i < list.count; ++i) {
    if (first == 0) AskForRow(list, i);
    const float* row = list.row(i) + first;
    for (std::int64_t v = 0; v < kCount; ++v) {
      sum[v] = hn::Add(sum[v], hn::PromoteTo(d, hn::LoadU(F32x4(), row + v * kSumLanes)));
    }
  }
  for (std::int64_t v = 0; v < kCount; ++v) hn::StoreU(sum[v], d, sums + first + v * kSumLanes);
}

void SumRowsImpl(const RowList& list, double* sums) {
  std::int64_t c = 0;
  for (; c + 8 * kSumLanes <= list.dim; c += 8 * kSumLanes) SumColumns<8>(list, c, sums);
  for (; c + kSumLanes <= list.dim; c += kSumLanes) SumColumns<1>(list, c, sums);
  for (; c < list.dim; ++c) {
    sums[c] = 0.0;
    for (std::int64_t i = 0; i < list.count; ++i) sums[c] += static_cast<double>(list.row(i)[c]);
  }
}

// A sum over n components, as Dot() adds them: `vector` adds the products of 8 of them to a sum,
// `scalar` is one.
template <class Vector, class Scalar>
HWY_INLINE float SumOfProducts(std::int64_t n, const Vector& vector, const Scalar& scalar) {
  const F32x8 d;
  auto even = hn::Zero(d);
  auto odd = hn::Zero(d);
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    even = vector(c, even);
    odd = vector(c + kLanes, odd);
  }
  float rest = 0.0F;
  for (; c < n; ++c) rest += scalar(c);
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))) + rest;
}

void DotRowsImpl(const RowList& list, const float* x, float* dots) {
  const F32x8 d;
  for (std::int64_t i = 0; i < list.count; ++i) {
    AskForRow(list, i);
    const float* row = list.row(i);
    dots[i] = SumOfProducts(
        list.dim,
        [=](std::int64_t c, hn::Vec<F32x8> sum)
            HWY_ATTR { return hn::MulAdd(hn::LoadU(d, row + c), hn::LoadU(d, x + c), sum); },
        [=](std::int64_t c) { return row[c] * x[c]; });
  }
}

void SquareOffsetsImpl(const RowList& list, const float* x, float* squares) {
  const F32x8 d;
  for (std::int64_t i = 0; i < list.count; ++i) {
    AskForRow(list, i);
    const float* row = list.row(i);
    squares[i] = SumOfProducts(
        list.dim,
        [=](std::int64_t c, hn::Vec<F32x8> sum) HWY_ATTR {
          const auto off = hn::Sub(hn::LoadU(d, row + c), hn::LoadU(d, x + c));
          return hn::MulAdd(off, off, sum);
        },
        [=](std::int64_t c) { return (row[c] - x[c]) * (row[c] - x[c]); });
  }
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(SumRowsImpl);
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(SquareOffsetsImpl);

void SumRows(const RowList& list, double* sums) { HWY_DYNAMIC_DISPATCH(SumRowsImpl)(list, sums); }

void DotRows(const RowList& list, const float* x, float* dots) {
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(list, x, dots);
}

void SquareOffsets(const RowList& list, const float* x, float* squares) {
  HWY_DYNAMIC_DISPATCH(SquareOffsetsImpl)(list, x, squares);
}

}  // namespace attnd::engine
#endif
