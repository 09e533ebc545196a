#include "engine/simd/leaf_sums.h"

#include <bit>
#include <cstddef>
#include <cstdint>

#include "engine/block.h"
#include "engine/simd/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/simd/leaf_sums.cc"
#include "hwy/foreach_target.h"
// The order matters: after foreach_target.h.
#include "engine/simd/transpose-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32x8 = hn::CappedTag<float, 8>;
using F64x4 = hn::CappedTag<double, 4>;
using F32x4 = hn::Rebind<float, F64x4>;
using V = hn::Vec<F64x4>;
constexpr std::int64_t kLanes = 4;

// As many sums as stay in registers beside what is added to them.
constexpr std::int64_t kSums = 8;

HWY_INLINE V Load(const float* from) { return hn::PromoteTo(F64x4(), hn::LoadU(F32x4(), from)); }

// out[j] = a sum over components, to which add(c, x, sum) adds x = keys_t[c][j].
template <class Add>
HWY_INLINE void SumComponents(const float* keys_t, std::int64_t dim, double* out, const Add& add) {
  for (std::int64_t first = 0; first < kBlockTokens; first += kSums * kLanes) {
    V sums[kSums];
    for (V& sum : sums) sum = hn::Zero(F64x4());
    for (std::int64_t c = 0; c < dim; ++c) {
      const float* keys = keys_t + c * kBlockTokens + first;
      for (std::int64_t v = 0; v < kSums; ++v) sums[v] = add(c, Load(keys + v * kLanes), sums[v]);
    }
    for (std::int64_t v = 0; v < kSums; ++v) {
      hn::StoreU(sums[v], F64x4(), out + first + v * kLanes);
    }
  }
}

void KeyProductsImpl(const float* keys_t, std::int64_t dim, const float* x, double* products) {
  SumComponents(keys_t, dim, products, [=](std::int64_t c, V key, V sum) HWY_ATTR {
    return hn::MulAdd(hn::Set(F64x4(), static_cast<double>(x[c])), key, sum);
  });
}

void SquaredDistancesImpl(const KeyColumns& leaf, double* squares) {
  SumComponents(leaf.keys_t, leaf.dim, squares, [&](std::int64_t c, V key, V sum) HWY_ATTR {
    const auto mean = static_cast<double>(leaf.mean[c * leaf.mean_stride]);
    const V off = hn::Sub(key, hn::Set(F64x4(), mean));
    return hn::MulAdd(off, off, sum);
  });
}

void MeanKeyImpl(const float* keys_t, std::int64_t dim, const double* weights, float* mean,
                 std::int64_t mean_stride) {
  const F64x4 d;
  for (std::int64_t c = 0; c < dim; ++c) {
    const float* keys = keys_t + c * kBlockTokens;
    V even = hn::Zero(d);
    V odd = hn::Zero(d);
    for (std::int64_t j = 0; j < kBlockTokens; j += 2 * kLanes) {
      even = hn::MulAdd(hn::LoadU(d, weights + j), Load(keys + j), even);
      odd = hn::MulAdd(hn::LoadU(d, weights + j + kLanes), Load(keys + j + kLanes), odd);
    }
    mean[c * mean_stride] = static_cast<float>(hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))));
  }
}

void MeanValueImpl(const float* values, std::int64_t n, const double* weights, float* mean) {
  const F64x4 d;
  constexpr std::int64_t kVectors = 4;
  for (std::int64_t first = 0; first < n; first += kVectors * kLanes) {
    V sums[kVectors];
    for (V& sum : sums) sum = hn::Zero(d);
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      const V weight = hn::Set(d, weights[j]);
      const float* row = values + j * n + first;
      for (std::int64_t v = 0; v < kVectors; ++v) {
        sums[v] = hn::MulAdd(weight, Load(row + v * kLanes), sums[v]);
      }
    }
    for (std::int64_t v = 0; v < kVectors; ++v) {
      hn::StoreU(hn::DemoteTo(F32x4(), sums[v]), F32x4(), mean + first + v * kLanes);
    }
  }
}

void CentreKeysImpl(const KeyColumns& leaf, const float* roots, std::int64_t width, float* keys) {
  const F32x8 d;
  for (std::int64_t first = 0; first < width; first += kTile) {
    for (std::int64_t j = 0; j < kBlockTokens; j += kTile) {
      const auto root = hn::LoadU(d, roots + j);
      TransposeTile(
          [&](std::int64_t i) HWY_ATTR {
            const std::int64_t c = first + i;
            if (c >= leaf.dim) return hn::Zero(d);
            const auto mean = hn::Set(d, leaf.mean[c * leaf.mean_stride]);
            return hn::Mul(root, hn::Sub(hn::LoadU(d, leaf.keys_t + c * kBlockTokens + j), mean));
          },
          [&](TileVector key, std::int64_t i)
              HWY_ATTR { hn::StoreU(key, d, keys + (j + i) * width + first); });
    }
  }
}

void CentreValuesImpl(const float* values, std::int64_t n, const float* mean, const float* roots,
                      float* out) {
  const F32x8 d;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    const auto root = hn::Set(d, roots[j]);
    for (std::int64_t c = 0; c < n; c += 8) {
      const auto off = hn::Sub(hn::LoadU(d, values + j * n + c), hn::LoadU(d, mean + c));
      hn::StoreU(hn::Mul(root, off), d, out + j * n + c);
    }
  }
}

// Of kVectors vectors of components.
template <std::size_t kVectors>
HWY_INLINE void AddColumns(const float* rows, std::int64_t stride, std::uint64_t valid,
                           double* sums, double* squares) {
  const F64x4 d;
  constexpr auto kCount = static_cast<std::int64_t>(kVectors);
  V sum[kVectors];
  V square[kVectors];
  for (std::int64_t v = 0; v < kCount; ++v) {
    sum[v] = hn::LoadU(d, sums + v * kLanes);
    square[v] = hn::LoadU(d, squares + v * kLanes);
  }
  for (std::uint64_t rest = valid; rest != 0; rest &= rest - 1) {
    const float* row = rows + std::countr_zero(rest) * stride;
    for (std::int64_t v = 0; v < kCount; ++v) {
      const V x = Load(row + v * kLanes);
      sum[v] = hn::Add(sum[v], x);
      square[v] = hn::MulAdd(x, x, square[v]);
    }
  }
  for (std::int64_t v = 0; v < kCount; ++v) {
    hn::StoreU(sum[v], d, sums + v * kLanes);
    hn::StoreU(square[v], d, squares + v * kLanes);
  }
}

void AddRowsAndSquaresImpl(const float* rows, std::int64_t stride, std::int64_t dim,
                           std::uint64_t valid, double* sums, double* squares) {
  std::int64_t c = 0;
  for (; c + 4 * kLanes <= dim; c += 4 * kLanes) {
    AddColumns<4>(rows + c, stride, valid, sums + c, squares + c);
  }
  for (; c + kLanes <= dim; c += kLanes) {
    AddColumns<1>(rows + c, stride, valid, sums + c, squares + c);
  }
  for (; c < dim; ++c) {
    for (std::uint64_t rest = valid; rest != 0; rest &= rest - 1) {
      const auto x = static_cast<double>(rows[std::countr_zero(rest) * stride + c]);
      sums[c] += x;
      squares[c] += x * x;
    }
  }
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnd::engine {
HWY_EXPORT(KeyProductsImpl);
HWY_EXPORT(SquaredDistancesImpl);
HWY_EXPORT(MeanKeyImpl);
HWY_EXPORT(MeanValueImpl);
HWY_EXPORT(CentreKeysImpl);
HWY_EXPORT(CentreValuesImpl);
HWY_EXPORT(AddRowsAndSquaresImpl);

void KeyProducts(const float* keys_t, std::int64_t dim, const float* x, double* products) {
  HWY_DYNAMIC_DISPATCH(KeyProductsImpl)(keys_t, dim, x, products);
}

void SquaredDistances(const KeyColumns& leaf, double* squares) {
  HWY_DYNAMIC_DISPATCH(SquaredDistancesImpl)(leaf, squares);
}

void MeanKey(const float* keys_t, std::int64_t dim, const double* weights, float* mean,
             std::int64_t mean_stride) {
  HWY_DYNAMIC_DISPATCH(MeanKeyImpl)(keys_t, dim, weights, mean, mean_stride);
}

void MeanValue(const float* values, std::int64_t n, const double* weights, float* mean) {
  HWY_DYNAMIC_DISPATCH(MeanValueImpl)(values, n, weights, mean);
}

void CentreKeys(const KeyColumns& leaf, const float* roots, std::int64_t width, float* keys) {
  HWY_DYNAMIC_DISPATCH(CentreKeysImpl)(leaf, roots, width, keys);
}

void CentreValues(const float* values, std::int64_t n, const float* mean, const float* roots,
                  float* out) {
  HWY_DYNAMIC_DISPATCH(CentreValuesImpl)(values, n, mean, roots, out);
}

void AddRowsAndSquares(const float* rows, std::int64_t stride, std::int64_t dim,
                       std::uint64_t valid, double* sums, double* squares) {
  HWY_DYNAMIC_DISPATCH(AddRowsAndSquaresImpl)(rows, stride, dim, valid, sums, squares);
}

}  // namespace attnd::engine
#endif
