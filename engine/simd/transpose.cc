#include "engine/simd/transpose.h"

#include <cstdint>

#include "engine/block.h"
#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/transpose.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "engine/simd/bf16-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32x8 = hn::CappedTag<float, 8>;
constexpr std::int64_t kTile = 8;

HWY_INLINE void StoreAs(hn::Vec<F32x8> v, float* to) { hn::StoreU(v, F32x8(), to); }
HWY_INLINE void StoreAs(hn::Vec<F32x8> v, std::uint16_t* to) { StoreBf16(F32x8(), v, to); }

HWY_INLINE void StoreAs(float x, float* to) { *to = x; }
HWY_INLINE void StoreAs(float x, std::uint16_t* to) { *to = Bf16Bits(x); }

// 8 keys by 8 components: pairs of lanes, then pairs of pairs, then halves change places.
template <class T>
HWY_INLINE void TransposeTile(const float* keys, std::int64_t stride, T* to) {
  const F32x8 d;
  const hn::Repartition<double, F32x8> pairs;
  hn::Vec<F32x8> even[4];  // of keys i and i + 1 for even i: components 0, 1 (and 4, 5)
  hn::Vec<F32x8> odd[4];   // components 2, 3 (and 6, 7)
  for (std::int64_t i = 0; i < 4; ++i) {
    const auto a = hn::LoadU(d, keys + 2 * i * stride);
    const auto b = hn::LoadU(d, keys + (2 * i + 1) * stride);
    even[i] = hn::InterleaveLower(d, a, b);
    odd[i] = hn::InterleaveUpper(d, a, b);
  }
  const auto lower = [&](hn::Vec<F32x8> x, hn::Vec<F32x8> y) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveLower(pairs, hn::BitCast(pairs, x), hn::BitCast(pairs, y)));
  };
  const auto upper = [&](hn::Vec<F32x8> x, hn::Vec<F32x8> y) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveUpper(pairs, hn::BitCast(pairs, x), hn::BitCast(pairs, y)));
  };
  // Component c of keys 0..3 (first) and 4..7 (second) in the lower half, component c + 4 in the
  // upper.
  const hn::Vec<F32x8> first[4] = {lower(even[0], even[1]), upper(even[0], even[1]),
                                   lower(odd[0], odd[1]), upper(odd[0], odd[1])};
  const hn::Vec<F32x8> second[4] = {lower(even[2], even[3]), upper(even[2], even[3]),
                                    lower(odd[2], odd[3]), upper(odd[2], odd[3])};
  for (std::int64_t c = 0; c < 4; ++c) {
    StoreAs(hn::ConcatLowerLower(d, second[c], first[c]), to + c * kBlockTokens);
    StoreAs(hn::ConcatUpperUpper(d, second[c], first[c]), to + (c + 4) * kBlockTokens);
  }
}

template <class T>
HWY_INLINE void Transpose(const float* keys, std::int64_t stride, std::int64_t count,
                          std::int64_t d, T* to) {
  const std::int64_t tiled_keys = count / kTile * kTile;
  const std::int64_t tiled_components = d / kTile * kTile;
  for (std::int64_t p = 0; p < tiled_components; p += kTile) {
    for (std::int64_t j = 0; j < tiled_keys; j += kTile) {
      TransposeTile(keys + j * stride + p, stride, to + p * kBlockTokens + j);
    }
  }
  for (std::int64_t j = 0; j < count; ++j) {
    for (std::int64_t p = j < tiled_keys ? tiled_components : 0; p < d; ++p) {
      StoreAs(keys[j * stride + p], to + p * kBlockTokens + j);
    }
  }
}

void TransposeF32(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                  float* to) {
  Transpose(keys, stride, count, d, to);
}

void TransposeBf16(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   std::uint16_t* to) {
  Transpose(keys, stride, count, d, to);
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(TransposeF32);
HWY_EXPORT(TransposeBf16);

void TransposeKeys(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   float* keys_t) {
  HWY_DYNAMIC_DISPATCH(TransposeF32)(keys, stride, count, d, keys_t);
}

void TransposeKeys(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   std::uint16_t* keys_t) {
  HWY_DYNAMIC_DISPATCH(TransposeBf16)(keys, stride, count, d, keys_t);
}

}  // namespace attnd::engine
#endif
