// 8 vectors of 8 lanes change rows for columns. Compiled once per instruction set.
#if defined(ATTND_ENGINE_SIMD_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTND_ENGINE_SIMD_TRANSPOSE_INL_H_
#undef ATTND_ENGINE_SIMD_TRANSPOSE_INL_H_
#else
#define ATTND_ENGINE_SIMD_TRANSPOSE_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnd::engine::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kTile = 8;
using TileVector = hn::Vec<hn::CappedTag<float, 8>>;

// load(i) is row i, store(column, c) gets column c: pairs of lanes, then pairs of pairs, then
// halves change places.
template <class Load, class Store>
HWY_INLINE void TransposeTile(const Load& load, const Store& store) {
  const hn::CappedTag<float, 8> d;
  const hn::CappedTag<double, 4> pairs;
  TileVector even[4];  // of rows i and i + 1 for even i: columns 0, 1 (and 4, 5)
  TileVector odd[4];   // columns 2, 3 (and 6, 7)
  for (std::int64_t i = 0; i < 4; ++i) {
    const TileVector a = load(2 * i);
    const TileVector b = load(2 * i + 1);
    even[i] = hn::InterleaveLower(d, a, b);
    odd[i] = hn::InterleaveUpper(d, a, b);
  }
  const auto lower = [&](TileVector x, TileVector y) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveLower(pairs, hn::BitCast(pairs, x), hn::BitCast(pairs, y)));
  };
  const auto upper = [&](TileVector x, TileVector y) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveUpper(pairs, hn::BitCast(pairs, x), hn::BitCast(pairs, y)));
  };
  // Column c of rows 0..3 (first) and 4..7 (second) in the lower half, column c + 4 in the upper.
  const TileVector first[4] = {lower(even[0], even[1]), upper(even[0], even[1]),
                               lower(odd[0], odd[1]), upper(odd[0], odd[1])};
  const TileVector second[4] = {lower(even[2], even[3]), upper(even[2], even[3]),
                                lower(odd[2], odd[3]), upper(odd[2], odd[3])};
  for (std::int64_t c = 0; c < 4; ++c) {
    store(hn::ConcatLowerLower(d, second[c], first[c]), c);
    store(hn::ConcatUpperUpper(d, second[c], first[c]), c + 4);
  }
}

}  // namespace attnd::engine::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
