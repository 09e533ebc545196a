#include "engine/random.h"

#include <cmath>

namespace attnd::engine {
namespace {

// ln x for x in (0, 1): x = 2^e m with m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1))
// by its series. Not std::log, whose last bit differs between libraries.
double Log(double x) {
  constexpr double kSqrtHalf = 0.70710678118654752440;
  constexpr double kLn2 = 0.69314718055994530942;
  int exponent = 0;
  double mantissa = std::frexp(x, &exponent);
  if (mantissa < kSqrtHalf) {
    mantissa *= 2;
    --exponent;
  }
  const double z = (mantissa - 1) / (mantissa + 1);
  const double z2 = z * z;
  double sum = 0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * z2 + 1.0 / k;
  return exponent * kLn2 + 2 * z * sum;
}

}  // namespace

double NormalGenerator::Next() {
  if (has_second_) {
    has_second_ = false;
    return second_;
  }
  while (true) {
    const double a = 2 * Uniform() - 1;
    const double b = 2 * Uniform() - 1;
    const double s = a * a + b * b;
    if (s >= 1 || s == 0) continue;
    const double factor = std::sqrt(-2 * Log(s) / s);
    second_ = b * factor;
    has_second_ = true;
    return a * factor;
  }
}

}  // namespace attnd::engine
