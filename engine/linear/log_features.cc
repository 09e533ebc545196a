#include "engine/linear/log_features.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/linear/row_exponents.h"
#include "engine/simd/maps.h"

namespace attnd::engine {

RowFactor SplitFactor(double log_factor) {
  constexpr double kLog2E = 1.44269504088896340736;
  constexpr double kLn2 = 0.69314718055994530942;
  const double exponent = std::ceil(log_factor * kLog2E);
  if (!(std::abs(exponent) <= kMaxExponent)) {
    return {0, std::numeric_limits<float>::quiet_NaN()};
  }
  const double rest = std::min(log_factor - exponent * kLn2, 0.0);
  return {static_cast<std::int32_t>(exponent), static_cast<float>(rest)};
}

std::int32_t ExpFeatures(double log_factor, float* features, std::int64_t n) {
  const float largest = MaxOf(features, n);
  const RowFactor factor = SplitFactor(log_factor + static_cast<double>(largest));
  ExpShifted(features, largest, factor.log_factor, features, n);
  return factor.exponent;
}

}  // namespace attnd::engine
