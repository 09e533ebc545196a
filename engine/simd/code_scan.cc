#include "engine/simd/code_scan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/block.h"
#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/code_scan.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "engine/simd/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;
using F32x4 = hn::Full128<float>;
using F32x8 = hn::CappedTag<float, 8>;
using I16 = hn::Repartition<std::int16_t, F32>;
using I32 = hn::Repartition<std::int32_t, F32>;
using I8 = hn::Rebind<std::int8_t, I16>;

constexpr std::size_t kLanes = hn::MaxLanes(F32());
constexpr std::size_t kVectors = static_cast<std::size_t>(kBlockTokens) / kLanes;

// Sums run in 16 lanes, as in softmax.cc.
constexpr std::size_t kSumLanes = 16;
constexpr std::size_t kSums = kSumLanes / kLanes;

HWY_INLINE float SumOf16(const VF32 (&sum)[kSums]) {
#if HWY_TARGET == HWY_AVX2
  const hn::Vec<F32x8> eight = hn::Add(sum[0], sum[1]);
#else
  const hn::Vec<F32x8> eight =
      hn::Add(hn::LowerHalf(F32x8(), sum[0]), hn::UpperHalf(F32x8(), sum[0]));
#endif
  const auto four = hn::Add(hn::LowerHalf(F32x4(), eight), hn::UpperHalf(F32x4(), eight));
  return hn::GetLane(hn::SumOfLanes(F32x4(), four));
}

void ScanCodesImpl(const std::int16_t* query, std::int64_t pairs, const std::int8_t* codes,
                   const float* scales, float step, float base, float* scores) {
  const I32 d32;
  const I16 d16;
  const I8 d8;
  const F32 d;
  constexpr std::int64_t kRowBytes = 2 * kBlockTokens;
  hn::Vec<I32> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d32);
  hn::Vec<I32> unused = hn::Zero(d32);  // second sums of instruction sets that need two
  for (std::int64_t p = 0; p < pairs; ++p) {
    std::int32_t pair = 0;
    std::memcpy(&pair, query + 2 * p, sizeof pair);
    const auto both = hn::BitCast(d16, hn::Set(d32, pair));
    const std::int8_t* row = codes + p * kRowBytes;
    for (std::size_t v = 0; v < kVectors; ++v) {
      const auto keys = hn::PromoteTo(d16, hn::LoadU(d8, row + v * 2 * kLanes));
      sums[v] = hn::ReorderWidenMulAccumulate(d32, both, keys, sums[v], unused);
    }
  }
  const VF32 offset = hn::Set(d, base);
  const VF32 unit = hn::Set(d, step);
  for (std::size_t v = 0; v < kVectors; ++v) {
    const VF32 dot = hn::ConvertTo(d, sums[v]);
    const VF32 factor = hn::Mul(unit, hn::LoadU(d, scales + v * kLanes));
    hn::StoreU(hn::MulAdd(factor, dot, offset), d, scores + v * kLanes);
  }
}

float CodeWeightsImpl(const float* weights, const float* steps, std::int16_t* whole) {
  const F32 d;
  const hn::Rebind<std::int16_t, F32> d16;
  VF32 products[kVectors];
  VF32 max = hn::Zero(d);
  for (std::size_t v = 0; v < kVectors; ++v) {
    products[v] = hn::Mul(hn::LoadU(d, weights + v * kLanes), hn::LoadU(d, steps + v * kLanes));
    max = hn::Max(max, products[v]);
  }
  constexpr float kMost = 32767.0F;
  const float largest = hn::GetLane(hn::MaxOfLanes(d, max));
  const float step = largest / kMost;
  const VF32 inverse = hn::Set(d, step > 0 ? 1 / step : 0.0F);
  for (std::size_t v = 0; v < kVectors; ++v) {
    const VF32 number = hn::Min(hn::Mul(products[v], inverse), hn::Set(d, kMost));
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(number)), d16, whole + v * kLanes);
  }
  return step;
}

// `kColumns` columns of which the sums stay in registers: 4 vectors of AVX-512, 8 of AVX2.
template <std::size_t kColumns>
HWY_INLINE void SumColumns(const std::int16_t* whole, float step, const std::int8_t* codes,
                           std::int64_t columns, float* acc) {
  const hn::CappedTag<float, kColumns> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Repartition<std::int16_t, decltype(d)> d16;
  const hn::Rebind<std::int8_t, decltype(d16)> d8;
  constexpr std::size_t kWidth = hn::MaxLanes(d);
  constexpr std::size_t kCount = kColumns / kWidth;
  hn::Vec<decltype(d32)> sums[kCount];
  for (auto& sum : sums) sum = hn::Zero(d32);
  hn::Vec<decltype(d32)> unused = hn::Zero(d32);
  for (std::int64_t p = 0; p < kBlockTokens / 2; ++p) {
    std::int32_t pair = 0;
    std::memcpy(&pair, whole + 2 * p, sizeof pair);
    const auto both = hn::BitCast(d16, hn::Set(d32, pair));
    const std::int8_t* row = codes + 2 * p * columns;
    for (std::size_t v = 0; v < kCount; ++v) {
      const auto values = hn::PromoteTo(d16, hn::LoadU(d8, row + 2 * v * kWidth));
      sums[v] = hn::ReorderWidenMulAccumulate(d32, both, values, sums[v], unused);
    }
  }
  const auto unit = hn::Set(d, step);
  for (std::size_t v = 0; v < kCount; ++v) {
    float* to = acc + v * kWidth;
    hn::StoreU(hn::MulAdd(unit, hn::ConvertTo(d, sums[v]), hn::LoadU(d, to)), d, to);
  }
}

void SumCodesImpl(const std::int16_t* whole, float step, const std::int8_t* codes,
                  std::int64_t columns, float* acc) {
  std::int64_t c = 0;
  for (; c + 64 <= columns; c += 64) SumColumns<64>(whole, step, codes + 2 * c, columns, acc + c);
  for (; c + 32 <= columns; c += 32) SumColumns<32>(whole, step, codes + 2 * c, columns, acc + c);
  for (; c < columns; c += 16) SumColumns<16>(whole, step, codes + 2 * c, columns, acc + c);
}

float MaxScoreImpl(const float* scores) {
  const F32 d;
  VF32 max = hn::LoadU(d, scores);
  for (std::size_t v = 1; v < kVectors; ++v) {
    max = hn::Max(max, hn::LoadU(d, scores + v * kLanes));
  }
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

// Bit j: lane j of f(vector) says so.
template <class Function>
HWY_INLINE std::uint64_t MaskOf(const Function& f) {
  std::uint64_t set = 0;
  for (std::size_t v = 0; v < kVectors; ++v) {
    std::uint8_t bits[8] = {};
    hn::StoreMaskBits(F32(), f(v * kLanes), bits);
    std::uint64_t mask = 0;
    std::memcpy(&mask, bits, sizeof mask);
    set |= mask << (v * kLanes);
  }
  return set;
}

std::uint64_t ScoresAboveImpl(const float* scores, float threshold) {
  const F32 d;
  const VF32 least = hn::Set(d, threshold);
  return MaskOf([&](std::size_t i) HWY_ATTR { return hn::Gt(hn::LoadU(d, scores + i), least); });
}

HWY_INLINE VF32 WeightedSquare(const float* weights, const float* sizes, std::size_t i) {
  const F32 d;
  const VF32 size = hn::LoadU(d, sizes + i);
  return hn::Mul(hn::Mul(hn::LoadU(d, weights + i), size), size);
}

std::uint64_t SquaresAboveImpl(const float* weights, const float* sizes, float limit) {
  const VF32 least = hn::Set(F32(), limit);
  return MaskOf([&](std::size_t i)
                    HWY_ATTR { return hn::Gt(WeightedSquare(weights, sizes, i), least); });
}

void SumWeightsImpl(const float* weights, const float* errors, const float* sizes,
                    WeightSums* sums) {
  const F32 d;
  VF32 sum[kSums];
  VF32 error[kSums];
  VF32 square[kSums];
  for (std::size_t s = 0; s < kSums; ++s) sum[s] = error[s] = square[s] = hn::Zero(d);
  for (std::size_t v = 0; v < kVectors; ++v) {
    const VF32 weight = hn::LoadU(d, weights + v * kLanes);
    const std::size_t s = v % kSums;
    sum[s] = hn::Add(sum[s], weight);
    error[s] = hn::MulAdd(weight, hn::LoadU(d, errors + v * kLanes), error[s]);
    square[s] = hn::Add(square[s], WeightedSquare(weights, sizes, v * kLanes));
  }
  *sums = {SumOf16(sum), SumOf16(error), SumOf16(square)};
}

void WeighScoresImpl(float* scores, float reference, const float* errors, const float* sizes,
                     WeightSums* sums) {
  const F32 d;
  const VF32 shift = hn::Set(d, reference);
  for (std::size_t v = 0; v < kVectors; ++v) {
    float* at = scores + v * kLanes;
    hn::StoreU(ExpUpTo87(d, hn::Sub(hn::LoadU(d, at), shift)), d, at);
  }
  SumWeightsImpl(scores, errors, sizes, sums);
}

float DotRowsImpl(const float* x, const float* y, std::int64_t n) {
  const F32 d;
  VF32 sum[kSums];
  for (VF32& lane : sum) lane = hn::Zero(d);
  constexpr auto kStep = static_cast<std::int64_t>(kSumLanes);
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    for (std::size_t s = 0; s < kSums; ++s) {
      const float* from = x + i + static_cast<std::int64_t>(s * kLanes);
      const float* to = y + i + static_cast<std::int64_t>(s * kLanes);
      sum[s] = hn::MulAdd(hn::LoadU(d, from), hn::LoadU(d, to), sum[s]);
    }
  }
  if (i < n) {
    alignas(64) float last_x[kSumLanes] = {};
    alignas(64) float last_y[kSumLanes] = {};
    std::copy(x + i, x + n, last_x);
    std::copy(y + i, y + n, last_y);
    for (std::size_t s = 0; s < kSums; ++s) {
      sum[s] =
          hn::MulAdd(hn::Load(d, last_x + s * kLanes), hn::Load(d, last_y + s * kLanes), sum[s]);
    }
  }
  return SumOf16(sum);
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(ScanCodesImpl);
HWY_EXPORT(CodeWeightsImpl);
HWY_EXPORT(SumCodesImpl);
HWY_EXPORT(MaxScoreImpl);
HWY_EXPORT(ScoresAboveImpl);
HWY_EXPORT(SquaresAboveImpl);
HWY_EXPORT(SumWeightsImpl);
HWY_EXPORT(WeighScoresImpl);
HWY_EXPORT(DotRowsImpl);

void ScanCodes(const std::int16_t* query, std::int64_t pairs, const std::int8_t* codes,
               const float* scales, float step, float base, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScanCodesImpl)
  (query, pairs, codes, scales, step, base, scores);
}

void RefScanCodes(const std::int16_t* query, std::int64_t pairs, const std::int8_t* codes,
                  const float* scales, float step, float base, float* scores) {
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < 2 * pairs; ++i) {
      sum += query[i] * codes[(i / 2 * kBlockTokens + j) * 2 + i % 2];
    }
    scores[j] = std::fma(step * scales[j], static_cast<float>(sum), base);
  }
}

WeightSums WeighScores(float* scores, float reference, const float* errors, const float* sizes) {
  WeightSums sums;
  HWY_DYNAMIC_DISPATCH(WeighScoresImpl)(scores, reference, errors, sizes, &sums);
  return sums;
}

WeightSums SumWeights(const float* weights, const float* errors, const float* sizes) {
  WeightSums sums;
  HWY_DYNAMIC_DISPATCH(SumWeightsImpl)(weights, errors, sizes, &sums);
  return sums;
}

std::uint64_t SquaresAbove(const float* weights, const float* sizes, float limit) {
  return HWY_DYNAMIC_DISPATCH(SquaresAboveImpl)(weights, sizes, limit);
}

float CodeWeights(const float* weights, const float* steps, std::int16_t* whole) {
  return HWY_DYNAMIC_DISPATCH(CodeWeightsImpl)(weights, steps, whole);
}

void SumCodes(const std::int16_t* whole, float step, const std::int8_t* codes, std::int64_t columns,
              float* acc) {
  HWY_DYNAMIC_DISPATCH(SumCodesImpl)(whole, step, codes, columns, acc);
}

void RefSumCodes(const std::int16_t* whole, float step, const std::int8_t* codes,
                 std::int64_t columns, float* acc) {
  for (std::int64_t c = 0; c < columns; ++c) {
    std::int32_t sum = 0;
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      sum += whole[j] * codes[(j / 2 * columns + c) * 2 + j % 2];
    }
    acc[c] = std::fma(step, static_cast<float>(sum), acc[c]);
  }
}

float MaxScore(const float* scores) { return HWY_DYNAMIC_DISPATCH(MaxScoreImpl)(scores); }

std::uint64_t ScoresAbove(const float* scores, float threshold) {
  return HWY_DYNAMIC_DISPATCH(ScoresAboveImpl)(scores, threshold);
}

float DotRows(const float* x, const float* y, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(DotRowsImpl)(x, y, n);
}

}  // namespace attnd::engine
#endif
