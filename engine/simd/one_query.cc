#include "engine/simd/one_query.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

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

constexpr std::size_t kCacheLine = 64;

// Into the second level: a block of keys and one of values together are larger than the first.
template <std::size_t kBytes>
HWY_INLINE void PrefetchBytes(const void* address) {
  const char* line = static_cast<const char*>(address);
  for (std::size_t i = 0; i < kBytes; i += kCacheLine) __builtin_prefetch(line + i, 0, 2);
}

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

// kWidth chains side by side, one per column: sum[c] = fma(a[p], b[p * ldb + c], sum[c]) for p
// ascending, from 0. Then out = sum, or out + sum. Sums stay in registers: 64 columns are 8 of
// AVX2's 16, 4 of AVX-512's 32, and enough to hide the latency of a multiply-add.
template <std::size_t kWidth, class T>
HWY_INLINE void Chains(const float* a, std::int64_t k, const T* b, std::int64_t ldb,
                       const T* prefetch, bool accumulate, float* out) {
  const hn::CappedTag<float, kWidth / 2> d;
  constexpr std::size_t kPair = 2 * hn::MaxLanes(d);
  constexpr std::size_t kPairs = kWidth / kPair;
  hn::Vec<decltype(d)> even[kPairs];
  hn::Vec<decltype(d)> odd[kPairs];
  for (std::size_t v = 0; v < kPairs; ++v) even[v] = odd[v] = hn::Zero(d);
  for (std::int64_t p = 0; p < k; ++p) {
    const auto factor = hn::Set(d, a[p]);
    const T* row = b + p * ldb;
    if (prefetch != nullptr)
      PrefetchBytes<kWidth* static_cast<std::int64_t>(sizeof(T))>(prefetch + p * ldb);
    for (std::size_t v = 0; v < kPairs; ++v) {
      hn::Vec<decltype(d)> first, second;
      LoadPair(d, row + v * kPair, first, second);
      even[v] = hn::MulAdd(factor, first, even[v]);
      odd[v] = hn::MulAdd(factor, second, odd[v]);
    }
  }
  alignas(64) float sums[kWidth];
  for (std::size_t v = 0; v < kPairs; ++v) StorePair(d, even[v], odd[v], b, sums + v * kPair);
  for (std::size_t c = 0; c < kWidth; c += kPair / 2) {
    const auto sum = hn::Load(d, sums + c);
    hn::StoreU(accumulate ? hn::Add(hn::LoadU(d, out + c), sum) : sum, d, out + c);
  }
}

template <class T>
HWY_INLINE void Scores(const float* q, std::int64_t k, const T* keys_t, float* scores,
                       const T* prefetch) {
  for (std::int64_t first = 0; first < k; first += kGemmInnerPanel) {
    const std::int64_t size = std::min(kGemmInnerPanel, k - first);
    const std::int64_t offset = first * kBlockTokens;
    Chains<kBlockTokens>(q + first, size, keys_t + offset, kBlockTokens,
                         prefetch == nullptr ? nullptr : prefetch + offset, first > 0, scores);
  }
}

template <class T>
HWY_INLINE void WeightedSum(const float* weights, const T* values, std::int64_t width, float* acc,
                            const T* prefetch) {
  std::int64_t c = 0;
  const auto at = [&](const T* block) { return block == nullptr ? nullptr : block + c; };
  for (; c + 64 <= width; c += 64) {
    Chains<64>(weights, kBlockTokens, values + c, width, at(prefetch), true, acc + c);
  }
  if (c + 32 <= width) {
    Chains<32>(weights, kBlockTokens, values + c, width, at(prefetch), true, acc + c);
    c += 32;
  }
  if (c < width) Chains<16>(weights, kBlockTokens, values + c, width, at(prefetch), true, acc + c);
}

void ScoresF32(const float* q, std::int64_t d, const float* keys_t, float* scores,
               const float* prefetch) {
  Scores(q, d, keys_t, scores, prefetch);
}

void ScoresBf16(const float* q, std::int64_t d, const std::uint16_t* keys_t, float* scores,
                const std::uint16_t* prefetch) {
  Scores(q, d, keys_t, scores, prefetch);
}

void WeightedSumF32(const float* weights, const float* values, std::int64_t dv_padded, float* acc,
                    const float* prefetch) {
  WeightedSum(weights, values, dv_padded, acc, prefetch);
}

void WeightedSumBf16(const float* weights, const std::uint16_t* values, std::int64_t dv_padded,
                     float* acc, const std::uint16_t* prefetch) {
  WeightedSum(weights, values, dv_padded, acc, prefetch);
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
