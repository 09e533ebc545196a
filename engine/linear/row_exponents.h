// Arithmetic of rows that come with a power of two: their features are what is stored times
// 2^exponent, so that exp(w . x) of any finite w and x can be held, added and compared.
//
// A sum of such rows takes the largest exponent among them, and a row enters it times
// 2^(its exponent - the largest): exact, unless it is so much smaller that it underflows, at less
// than 2^-149 of the largest. What the largest exponent is depends on the rows alone, so it does
// not matter in which calls they came.
//
// Pure functions; any thread.
#ifndef ATTND_ENGINE_LINEAR_ROW_EXPONENTS_H_
#define ATTND_ENGINE_LINEAR_ROW_EXPONENTS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/block.h"

namespace attnd::engine {

// The exponent of no rows: below every other.
inline constexpr std::int32_t kNoExponent = std::numeric_limits<std::int32_t>::min();

// Exponents of features are in [-kMaxExponent, kMaxExponent], so that sums and differences of two
// fit.
inline constexpr std::int32_t kMaxExponent = std::int32_t{1} << 28;

// The largest exponent of the rows in `rows`; kNoExponent if there are none.
inline std::int32_t LargestExponent(const std::int32_t* exponents, RowMask rows) {
  std::int32_t largest = kNoExponent;
  for (; rows != 0; rows &= rows - 1) {
    largest = std::max(largest, exponents[std::countr_zero(rows)]);
  }
  return largest;
}

// 2^(exponent - largest), for exponent <= largest; 0 where it underflows and for kNoExponent.
inline float ExponentFactor(std::int32_t exponent, std::int32_t largest) {
  if (exponent == kNoExponent) return 0.0F;
  const std::int32_t power = exponent - largest;
  // What ldexp gives as long as it is a normal number, without the call.
  constexpr std::int32_t kSmallestNormal = -126;
  return power < kSmallestNormal ? std::ldexp(1.0F, power)
                                 : std::bit_cast<float>((power + 127) << 23);
}
inline double ExponentFactorF64(std::int32_t exponent, std::int32_t largest) {
  return exponent == kNoExponent ? 0.0 : std::ldexp(1.0, exponent - largest);
}

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_ROW_EXPONENTS_H_
