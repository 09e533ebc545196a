#include "engine/simd/one_query.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/block.h"
#include "engine/gemm.h"
#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/one_query.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Two vectors of neighbouring columns. bfloat16 is split in the even and the odd columns, which
// takes one shift and one mask, half of what widening in order takes (100 ns instead of 160 for 64
// x 64); StorePair puts them back.
template <class D>
HWY_INLINE void LoadPair(D d, const float* from, hn::Vec<D>& first, hn::Vec<D>& second) {
  first = hn::LoadU(d, from);
  second = hn::LoadU(d, from + hn::MaxLanes(d));
}

template <class D>
HWY_INLINE void LoadPair(D d, const std::uint16_t* from, hn::Vec<D>& first, hn::Vec<D>& second) {
  const hn::RebindToUnsigned<D> du;
  const hn::Repartition<std::uint16_t, D> du16;
  const auto both = hn::BitCast(du, hn::LoadU(du16, from));
  first = hn::BitCast(d, hn::ShiftLeft<16>(both));
  second = hn::BitCast(d, hn::And(both, hn::Set(du, 0xFFFF0000U)));
}

template <class D>
HWY_INLINE void StorePair(D d, hn::Vec<D> first, hn::Vec<D> second, const float* /*storage*/,
                          float* to) {
  hn::StoreU(first, d, to);
  hn::StoreU(second, d, to + hn::MaxLanes(d));
}

template <class D>
HWY_INLINE void StorePair(D d, hn::Vec<D> first, hn::Vec<D> second,
                          const std::uint16_t* /*storage*/, float* to) {
  hn::StoreInterleaved2(first, second, d, to);
}

// Columns that are summed in one pass over the rows; what a pass keeps between tiles stays in the
// first-level cache.
constexpr std::size_t kMaxColumns = 256;

// Rows per visit of a tile of columns. Wide rows are read in order this way, a few whole rows at a
// time, instead of once per tile with gaps, which the hardware's prefetchers follow badly: for 128
// columns in large pages 20 GB/s with gaps, 26 with 8 rows, 30 with 2 (memory gives 35), although
// the sums are loaded and stored more often.
constexpr std::int64_t kRowsPerVisit = 2;

// Continues kWidth chains, one per column: sum[c] = fma(a[p], b[p * ldb + c], sum[c]) for p
// ascending. Within the loop the sums are in registers: 64 columns are 8 of AVX2's 16, 4 of
// AVX-512's 32, and enough to hide the latency of a multiply-add. `sums` holds them in the order of
// LoadPair.
template <std::size_t kWidth, class T>
HWY_INLINE void Chains(const float* a, std::int64_t rows, const T* b, std::int64_t ldb,
                       float* sums) {
  const hn::CappedTag<float, kWidth / 2> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr std::size_t kPairs = kWidth / (2 * kLanes);
  hn::Vec<decltype(d)> even[kPairs];
  hn::Vec<decltype(d)> odd[kPairs];
  for (std::size_t v = 0; v < kPairs; ++v) {
    even[v] = hn::Load(d, sums + 2 * v * kLanes);
    odd[v] = hn::Load(d, sums + (2 * v + 1) * kLanes);
  }
  for (std::int64_t p = 0; p < rows; ++p) {
    const auto factor = hn::Set(d, a[p]);
    const T* row = b + p * ldb;
    for (std::size_t v = 0; v < kPairs; ++v) {
      hn::Vec<decltype(d)> first, second;
      LoadPair(d, row + 2 * v * kLanes, first, second);
      even[v] = hn::MulAdd(factor, first, even[v]);
      odd[v] = hn::MulAdd(factor, second, odd[v]);
    }
  }
  for (std::size_t v = 0; v < kPairs; ++v) {
    hn::Store(even[v], d, sums + 2 * v * kLanes);
    hn::Store(odd[v], d, sums + (2 * v + 1) * kLanes);
  }
}

// out = the finished chains in column order, or out + them.
template <std::size_t kWidth, class T>
HWY_INLINE void Finish(const T* storage, const float* sums, bool accumulate, float* out) {
  const hn::CappedTag<float, kWidth / 2> d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  alignas(64) float ordered[kWidth];
  for (std::size_t c = 0; c < kWidth; c += 2 * kLanes) {
    StorePair(d, hn::Load(d, sums + c), hn::Load(d, sums + c + kLanes), storage, ordered + c);
  }
  for (std::size_t c = 0; c < kWidth; c += kLanes) {
    const auto sum = hn::Load(d, ordered + c);
    hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, out + c), sum) : sum, d, out + c);
  }
}

// Calls f(width, first column) for tiles of 64, 32 and 16 columns; the width is a compile-time
// constant.
template <class Function>
HWY_INLINE void ForEachTile(std::int64_t columns, const Function& f) {
  std::int64_t c = 0;
  for (; c + 64 <= columns; c += 64) f(std::integral_constant<std::size_t, 64>(), c);
  if (c + 32 <= columns) {
    f(std::integral_constant<std::size_t, 32>(), c);
    c += 32;
  }
  if (c < columns) f(std::integral_constant<std::size_t, 16>(), c);
}

// out[c] = sum_p a[p] * b[p * ldb + c] as chains, or out + it.
template <class T>
HWY_INLINE void RowTimesMatrix(const float* a, std::int64_t rows, const T* b, std::int64_t ldb,
                               std::int64_t columns, bool accumulate, float* out) {
  alignas(64) float sums[kMaxColumns] = {};
  const std::int64_t visit = columns <= 64 ? rows : kRowsPerVisit;
  for (std::int64_t p = 0; p < rows; p += visit) {
    ForEachTile(columns, [&](auto width, std::int64_t c) HWY_ATTR {
      Chains<width()>(a + p, std::min(visit, rows - p), b + p * ldb + c, ldb, sums + c);
    });
  }
  ForEachTile(columns, [&](auto width, std::int64_t c)
                           HWY_ATTR { Finish<width()>(b, sums + c, accumulate, out + c); });
}

template <class T>
HWY_INLINE void Scores(const float* q, std::int64_t k, const T* keys_t, float* scores) {
  for (std::int64_t first = 0; first < k; first += kGemmInnerPanel) {
    RowTimesMatrix(q + first, std::min(kGemmInnerPanel, k - first), keys_t + first * kBlockTokens,
                   kBlockTokens, kBlockTokens, first > 0, scores);
  }
}

template <class T>
HWY_INLINE void WeightedSum(const float* weights, const T* values, std::int64_t width, float* acc) {
  constexpr auto kMost = static_cast<std::int64_t>(kMaxColumns);
  for (std::int64_t c = 0; c < width; c += kMost) {
    RowTimesMatrix(weights, kBlockTokens, values + c, width, std::min(kMost, width - c), true,
                   acc + c);
  }
}

// Asks for the first lines of each 4 KiB page of a block. The hardware's prefetchers follow a block
// read in order but stop at page borders, where a page walk comes on top: 20 GB/s became 27 with
// small pages and stayed at 33 with large ones. Asking for every line was slower than for none (33
// became 25 with large pages).
template <class T>
HWY_INLINE void PrefetchPages(const T* block, std::int64_t count) {
  if (block == nullptr) return;
  constexpr std::int64_t kPage = 4096 / sizeof(T);
  constexpr std::int64_t kLine = 64 / sizeof(T);
  for (std::int64_t i = 0; i < count; i += kPage) {
    for (std::int64_t line = 0; line < 4; ++line) {
      __builtin_prefetch(block + i + line * kLine, 0, 2);
    }
  }
}

void ScoresF32(const float* q, std::int64_t d, const float* keys_t, float* scores,
               const float* prefetch) {
  PrefetchPages(prefetch, d * kBlockTokens);
  Scores(q, d, keys_t, scores);
}

void ScoresBf16(const float* q, std::int64_t d, const std::uint16_t* keys_t, float* scores,
                const std::uint16_t* prefetch) {
  PrefetchPages(prefetch, d * kBlockTokens);
  Scores(q, d, keys_t, scores);
}

void WeightedSumF32(const float* weights, const float* values, std::int64_t dv_padded, float* acc,
                    const float* prefetch) {
  PrefetchPages(prefetch, dv_padded * kBlockTokens);
  WeightedSum(weights, values, dv_padded, acc);
}

void WeightedSumBf16(const float* weights, const std::uint16_t* values, std::int64_t dv_padded,
                     float* acc, const std::uint16_t* prefetch) {
  PrefetchPages(prefetch, dv_padded * kBlockTokens);
  WeightedSum(weights, values, dv_padded, acc);
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(ScoresF32);
HWY_EXPORT(ScoresBf16);
HWY_EXPORT(WeightedSumF32);
HWY_EXPORT(WeightedSumBf16);

void ScoresOneQuery(const float* q, std::int64_t d, const float* keys_t, float* scores,
                    const float* prefetch) {
  HWY_DYNAMIC_DISPATCH(ScoresF32)(q, d, keys_t, scores, prefetch);
}

void ScoresOneQuery(const float* q, std::int64_t d, const std::uint16_t* keys_t, float* scores,
                    const std::uint16_t* prefetch) {
  HWY_DYNAMIC_DISPATCH(ScoresBf16)(q, d, keys_t, scores, prefetch);
}

void WeightedSumOneQuery(const float* weights, const float* values, std::int64_t dv_padded,
                         float* acc, const float* prefetch) {
  HWY_DYNAMIC_DISPATCH(WeightedSumF32)(weights, values, dv_padded, acc, prefetch);
}

void WeightedSumOneQuery(const float* weights, const std::uint16_t* values, std::int64_t dv_padded,
                         float* acc, const std::uint16_t* prefetch) {
  HWY_DYNAMIC_DISPATCH(WeightedSumBf16)(weights, values, dv_padded, acc, prefetch);
}

}  // namespace attnd::engine
#endif
