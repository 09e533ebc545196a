#include "engine/simd/transpose.h"

#include <cstdint>

#include "engine/block.h"
#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/transpose.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "engine/simd/bf16-inl.h"
#include "engine/simd/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32x8 = hn::CappedTag<float, 8>;

HWY_INLINE void StoreAs(hn::Vec<F32x8> v, float* to) { hn::StoreU(v, F32x8(), to); }
HWY_INLINE void StoreAs(hn::Vec<F32x8> v, std::uint16_t* to) { StoreBf16(F32x8(), v, to); }

HWY_INLINE void StoreAs(float x, float* to) { *to = x; }
HWY_INLINE void StoreAs(float x, std::uint16_t* to) { *to = Bf16Bits(x); }

template <class T>
HWY_INLINE void Transpose(const float* keys, std::int64_t stride, std::int64_t count,
                          std::int64_t d, T* to) {
  const std::int64_t tiled_keys = count / kTile * kTile;
  const std::int64_t tiled_components = d / kTile * kTile;
  for (std::int64_t p = 0; p < tiled_components; p += kTile) {
    for (std::int64_t j = 0; j < tiled_keys; j += kTile) {
      const float* from = keys + j * stride + p;
      T* tile = to + p * kBlockTokens + j;
      TransposeTile([=](std::int64_t i) HWY_ATTR { return hn::LoadU(F32x8(), from + i * stride); },
                    [=](TileVector v, std::int64_t c)
                        HWY_ATTR { StoreAs(v, tile + c * kBlockTokens); });
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
