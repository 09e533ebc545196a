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
// So few were read before and are near.
constexpr std::int64_t kCachedRows = 512;

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
  for (; c + 12 * kSumLanes <= list.dim; c += 12 * kSumLanes) SumColumns<12>(list, c, sums);
  for (; c + 4 * kSumLanes <= list.dim; c += 4 * kSumLanes) SumColumns<4>(list, c, sums);
  for (; c + kSumLanes <= list.dim; c += kSumLanes) SumColumns<1>(list, c, sums);
  for (; c < list.dim; ++c) {
    sums[c] = 0.0;
    for (std::int64_t i = 0; i < list.count; ++i) sums[c] += static_cast<double>(list.row(i)[c]);
  }
}

// What is added up, of rows and x: products as they are, or squares of differences.
struct Products {
  static HWY_INLINE hn::Vec<F32x8> Add(hn::Vec<F32x8> row, hn::Vec<F32x8> x, hn::Vec<F32x8> sum) {
    return hn::MulAdd(row, x, sum);
  }
  static float Of(float row, float x) { return row * x; }
};

struct Squares {
  static HWY_INLINE hn::Vec<F32x8> Add(hn::Vec<F32x8> row, hn::Vec<F32x8> x, hn::Vec<F32x8> sum) {
    const auto off = hn::Sub(row, x);
    return hn::MulAdd(off, off, sum);
  }
  static float Of(float row, float x) { return (row - x) * (row - x); }
};

// Of four rows at once, in the order of Dot(): its last steps are taken by all four together.
template <class Term>
HWY_INLINE void SumFour(const float* const* rows, const float* x, std::int64_t n, float* sums) {
  const F32x8 d;
  const hn::Half<F32x8> half;
  hn::Vec<F32x8> even[4];
  hn::Vec<F32x8> odd[4];
  for (std::int64_t r = 0; r < 4; ++r) even[r] = odd[r] = hn::Zero(d);
  std::int64_t c = 0;
  for (; c + 2 * kLanes <= n; c += 2 * kLanes) {
    const auto first = hn::LoadU(d, x + c);
    const auto second = hn::LoadU(d, x + c + kLanes);
    for (std::int64_t r = 0; r < 4; ++r) {
      even[r] = Term::Add(hn::LoadU(d, rows[r] + c), first, even[r]);
      odd[r] = Term::Add(hn::LoadU(d, rows[r] + c + kLanes), second, odd[r]);
    }
  }
  alignas(16) float rest[4] = {};
  for (; c < n; ++c) {
    for (std::int64_t r = 0; r < 4; ++r) rest[r] += Term::Of(rows[r][c], x[c]);
  }
  hn::Vec<hn::Half<F32x8>> four[4];
  for (std::int64_t r = 0; r < 4; ++r) {
    const auto eight = hn::Add(even[r], odd[r]);
    four[r] = hn::Add(hn::LowerHalf(half, eight), hn::UpperHalf(half, eight));
  }
  // Lanes 0 + 2 of the first two rows, then 1 + 3; of the last two.
  const auto low = hn::Add(hn::InterleaveLower(half, four[0], four[1]),
                           hn::InterleaveUpper(half, four[0], four[1]));
  const auto high = hn::Add(hn::InterleaveLower(half, four[2], four[3]),
                            hn::InterleaveUpper(half, four[2], four[3]));
  const auto total =
      hn::Add(hn::ConcatLowerLower(half, high, low), hn::ConcatUpperUpper(half, high, low));
  hn::StoreU(hn::Add(total, hn::Load(half, rest)), half, sums);
}

template <class Term>
HWY_INLINE void SumEach(const RowList& list, const float* x, float* sums) {
  std::int64_t i = 0;
  for (; i + 4 <= list.count; i += 4) {
    const float* const rows[4] = {list.row(i), list.row(i + 1), list.row(i + 2), list.row(i + 3)};
    for (std::int64_t r = 0; r < 4 && list.count > kCachedRows; ++r) AskForRow(list, i + r);
    SumFour<Term>(rows, x, list.dim, sums + i);
  }
  if (i == list.count) return;
  // Those that are missing are the last one once more.
  const float* rows[4];
  float last[4];
  for (std::int64_t r = 0; r < 4; ++r) rows[r] = list.row(std::min(i + r, list.count - 1));
  SumFour<Term>(rows, x, list.dim, last);
  std::copy_n(last, list.count - i, sums + i);
}

void DotRowsImpl(const RowList& list, const float* x, float* dots) {
  SumEach<Products>(list, x, dots);
}

void SquareOffsetsImpl(const RowList& list, const float* x, float* squares) {
  SumEach<Squares>(list, x, squares);
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
