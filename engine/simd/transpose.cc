#include "engine/simd/transpose.h"

#include <cstdint>

#include "engine/block.h"
#include "engine/simd/nearest.h"
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

// Calls tile(p) for components [p, p + 8) until there are d, the last ones twice if need be, or
// one(p) for each where there are fewer than 8.
template <class Tile, class One>
HWY_INLINE void ForComponents(std::int64_t d, const Tile& tile, const One& one) {
  std::int64_t p = 0;
  for (; p + kTile <= d; p += kTile) tile(p);
  if (p < d && d >= kTile) {
    tile(d - kTile);
  } else {
    for (; p < d; ++p) one(p);
  }
}

void TransposeRowsImpl(const RowList& list, float* keys_t) {
  const F32x8 d;
  const std::int64_t tiled = list.count / kTile * kTile;
  for (std::int64_t j = 0; j < tiled; j += kTile) {
    const float* rows[kTile];
    for (std::int64_t i = 0; i < kTile; ++i) {
      rows[i] = list.row(j + i);
      if (j + kTile + i < list.count) PrefetchRow(list.row(j + kTile + i), list.dim);
    }
    float* columns = keys_t + j;
    ForComponents(
        list.dim,
        [&](std::int64_t p) HWY_ATTR {
          TransposeTile([&](std::int64_t i) HWY_ATTR { return hn::LoadU(d, rows[i] + p); },
                        [&](TileVector v, std::int64_t c)
                            HWY_ATTR { hn::StoreU(v, d, columns + (p + c) * kBlockTokens); });
        },
        [&](std::int64_t p) {
          for (std::int64_t i = 0; i < kTile; ++i) columns[p * kBlockTokens + i] = rows[i][p];
        });
  }
  for (std::int64_t j = tiled; j < list.count; ++j) {
    for (std::int64_t p = 0; p < list.dim; ++p) keys_t[p * kBlockTokens + j] = list.row(j)[p];
  }
}

void UntransposeKeysImpl(const float* keys_t, std::int64_t dim, const std::int32_t* places,
                         float* keys) {
  const F32x8 d;
  const auto row = [=](std::int64_t j) { return places[j] < 0 ? nullptr : keys + places[j] * dim; };
  for (std::int64_t j = 0; j < kBlockTokens; j += kTile) {
    const float* columns = keys_t + j;
    float* rows[kTile];
    for (std::int64_t i = 0; i < kTile; ++i) rows[i] = row(j + i);
    ForComponents(
        dim,
        [&](std::int64_t p) HWY_ATTR {
          TransposeTile([&](std::int64_t c)
                            HWY_ATTR { return hn::LoadU(d, columns + (p + c) * kBlockTokens); },
                        [&](TileVector v, std::int64_t i) HWY_ATTR {
                          if (rows[i] != nullptr) hn::StoreU(v, d, rows[i] + p);
                        });
        },
        [&](std::int64_t p) {
          for (std::int64_t i = 0; i < kTile; ++i) {
            if (rows[i] != nullptr) rows[i][p] = columns[p * kBlockTokens + i];
          }
        });
  }
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(TransposeF32);
HWY_EXPORT(TransposeBf16);
HWY_EXPORT(TransposeRowsImpl);
HWY_EXPORT(UntransposeKeysImpl);

void TransposeKeys(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   float* keys_t) {
  HWY_DYNAMIC_DISPATCH(TransposeF32)(keys, stride, count, d, keys_t);
}

void TransposeKeys(const float* keys, std::int64_t stride, std::int64_t count, std::int64_t d,
                   std::uint16_t* keys_t) {
  HWY_DYNAMIC_DISPATCH(TransposeBf16)(keys, stride, count, d, keys_t);
}

void TransposeRows(const RowList& list, float* keys_t) {
  HWY_DYNAMIC_DISPATCH(TransposeRowsImpl)(list, keys_t);
}

void UntransposeKeys(const float* keys_t, std::int64_t d, const std::int32_t* places, float* keys) {
  HWY_DYNAMIC_DISPATCH(UntransposeKeysImpl)(keys_t, d, places, keys);
}

}  // namespace attnd::engine
#endif
