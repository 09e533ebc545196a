#include "engine/simd/softmax.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/softmax.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "engine/simd/exp-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF32 = hn::Vec<F32>;
using F32x8 = hn::CappedTag<float, 8>;
using F32x4 = hn::Full128<float>;
constexpr std::int64_t kLanes = hn::MaxLanes(F32());

// Sums run in 16 fixed lanes, key j in lane j mod 16, and the lanes are then added in halves: the
// same bits whether 16 lanes are two vectors of AVX2 or one of AVX-512.
constexpr std::int64_t kSumLanes = 16;
constexpr std::int64_t kSums = kSumLanes / kLanes;
constexpr std::int64_t kVectors = kSoftmaxBlock / kLanes;

constexpr std::uint64_t kAllValid = ~std::uint64_t{0};

HWY_INLINE hn::Vec<F32x8> HalveTo8(const VF32 (&sum)[kSums]) {
#if HWY_TARGET == HWY_AVX2
  return hn::Add(sum[0], sum[1]);
#else
  return hn::Add(hn::LowerHalf(F32x8(), sum[0]), hn::UpperHalf(F32x8(), sum[0]));
#endif
}

HWY_INLINE float SumOf16(const VF32 (&sum)[kSums]) {
  const hn::Vec<F32x8> eight = HalveTo8(sum);
  const auto four = hn::Add(hn::LowerHalf(F32x4(), eight), hn::UpperHalf(F32x4(), eight));
  return hn::GetLane(hn::SumOfLanes(F32x4(), four));
}

// A row's mask as vector masks.
class LaneMask {
 public:
  explicit LaneMask(std::uint64_t valid) { std::memcpy(bytes_, &valid, sizeof(valid)); }
  HWY_INLINE hn::Mask<F32> At(std::int64_t vector) const {
    return hn::LoadMaskBits(F32(), bytes_ + vector * (kLanes / 8));
  }

 private:
  std::uint8_t bytes_[16] = {};  // LoadMaskBits may read 8 bytes from any of the first 8
};

HWY_INLINE float RowMax(const float* scores, std::uint64_t valid) {
  const F32 d;
  const VF32 lowest = hn::Neg(hn::Inf(d));
  VF32 max0 = lowest;
  VF32 max1 = lowest;
  if (valid == kAllValid) {
    for (std::int64_t v = 0; v < kVectors; v += 2) {
      max0 = hn::Max(max0, hn::LoadU(d, scores + v * kLanes));
      max1 = hn::Max(max1, hn::LoadU(d, scores + (v + 1) * kLanes));
    }
  } else {
    const LaneMask mask(valid);
    for (std::int64_t v = 0; v < kVectors; ++v) {
      max0 = hn::Max(max0, hn::IfThenElse(mask.At(v), hn::LoadU(d, scores + v * kLanes), lowest));
    }
  }
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
}

// Turns a row into weights and returns their sum. score * 0 is added to it: nothing for a finite
// score, NaN for any other; without it a score of -inf, which is an overflow too, would pass for a
// weight of 0.
HWY_INLINE float RowWeights(float* scores, std::uint64_t valid, float max) {
  const F32 d;
  const VF32 zero = hn::Zero(d);
  const VF32 shift = hn::Set(d, max);
  VF32 sum[kSums];
  for (VF32& lane : sum) lane = zero;
  if (valid == kAllValid) {
    for (std::int64_t v = 0; v < kVectors; ++v) {
      const VF32 s = hn::LoadU(d, scores + v * kLanes);
      const VF32 p = ExpUpTo87(d, hn::Sub(s, shift));
      sum[v % kSums] = hn::MulAdd(s, zero, hn::Add(sum[v % kSums], p));
      hn::StoreU(p, d, scores + v * kLanes);
    }
  } else {
    const LaneMask mask(valid);
    for (std::int64_t v = 0; v < kVectors; ++v) {
      const VF32 s = hn::IfThenElseZero(mask.At(v), hn::LoadU(d, scores + v * kLanes));
      const VF32 p = hn::IfThenElseZero(mask.At(v), ExpUpTo87(d, hn::Sub(s, shift)));
      sum[v % kSums] = hn::MulAdd(s, zero, hn::Add(sum[v % kSums], p));
      hn::StoreU(p, d, scores + v * kLanes);
    }
  }
  return SumOf16(sum);
}

// Rows go in groups, so that the corrections of a group are one or two vectors instead of one exp
// per row.
constexpr std::int64_t kGroup = 16;

HWY_INLINE void Group(float* scores, std::int64_t rows, const std::uint64_t* valid,
                      std::int64_t valid_stride, float* row_max, float* row_sum, float* corr) {
  const F32 d;
  alignas(64) float old_max[kGroup] = {};
  alignas(64) float new_max[kGroup] = {};
  alignas(64) float shift[kGroup];
  alignas(64) float factor[kGroup];
  for (std::int64_t r = 0; r < rows; ++r) {
    old_max[r] = row_max[r];
    new_max[r] = std::max(row_max[r], RowMax(scores + r * kSoftmaxBlock, valid[r * valid_stride]));
  }
  for (std::int64_t r = 0; r < kGroup; r += kLanes) {
    const VF32 before = hn::Load(d, old_max + r);
    const VF32 after = hn::Load(d, new_max + r);
    // Without a finite maximum there is nothing to shift by; -inf - -inf would be NaN.
    const VF32 safe = hn::IfThenZeroElse(hn::Eq(after, hn::Neg(hn::Inf(d))), after);
    hn::Store(safe, d, shift + r);
    const VF32 rescale = ExpUpTo87(d, hn::Sub(before, safe));
    hn::Store(hn::IfThenElse(hn::Eq(before, after), hn::Set(d, 1.0F), rescale), d, factor + r);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const float sum = RowWeights(scores + r * kSoftmaxBlock, valid[r * valid_stride], shift[r]);
    row_sum[r] = row_sum[r] * factor[r] + sum;
    row_max[r] = new_max[r];
    corr[r] = factor[r];
  }
}

void OnlineSoftmaxBlockImpl(float* scores, std::int64_t rows, const std::uint64_t* valid,
                            std::int64_t valid_stride, float* row_max, float* row_sum,
                            float* corr) {
  for (std::int64_t r = 0; r < rows; r += kGroup) {
    Group(scores + r * kSoftmaxBlock, std::min(kGroup, rows - r), valid + r * valid_stride,
          valid_stride, row_max + r, row_sum + r, corr + r);
  }
}

void RescaleRowsImpl(float* acc, std::int64_t rows, std::int64_t cols, const float* corr) {
  const F32 d;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (corr[r] == 1.0F) continue;
    float* row = acc + r * cols;
    const VF32 factor = hn::Set(d, corr[r]);
    std::int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, row + c), factor), d, row + c);
    for (; c < cols; ++c) row[c] *= corr[r];
  }
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(OnlineSoftmaxBlockImpl);
HWY_EXPORT(RescaleRowsImpl);

void OnlineSoftmaxBlock(float* scores, std::int64_t rows, const std::uint64_t* valid,
                        std::int64_t valid_stride, float* row_max, float* row_sum, float* corr) {
  HWY_DYNAMIC_DISPATCH(OnlineSoftmaxBlockImpl)
  (scores, rows, valid, valid_stride, row_max, row_sum, corr);
}

void RescaleRows(float* acc, std::int64_t rows, std::int64_t cols, const float* corr) {
  HWY_DYNAMIC_DISPATCH(RescaleRowsImpl)(acc, rows, cols, corr);
}

}  // namespace attnd::engine
#endif
