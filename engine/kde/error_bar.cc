#include "engine/kde/error_bar.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace attnd::engine {

void MergeMoments(const ErrorMoments& from, ErrorMoments& into) {
  if (from.total() == 0 && from.residual_high == 0) return;
  if (into.total() == 0 && into.residual_high == 0) {
    into = from;
    return;
  }
  const double reference = std::max(from.reference, into.reference);
  const double f = std::exp(from.reference - reference);
  const double t = std::exp(into.reference - reference);
  into.reference = reference;
  into.exact = into.exact * t + from.exact * f;
  into.residual = into.residual * t + from.residual * f;
  into.residual_low = into.residual_low * t + from.residual_low * f;
  into.residual_high = into.residual_high * t + from.residual_high * f;
  into.range = std::max(into.range * t, from.range * f);
  into.pairs += from.pairs;
  into.ratio_square = into.ratio_square * t * t + from.ratio_square * f * f;
  into.value_square = into.value_square * t * t + from.value_square * f * f;
  into.value_ratio.resize(std::max(into.value_ratio.size(), from.value_ratio.size()));
  for (double& x : into.value_ratio) x *= t * t;
  for (std::size_t c = 0; c < from.value_ratio.size(); ++c) {
    into.value_ratio[c] += from.value_ratio[c] * f * f;
  }
}

double StandardError(const ErrorMoments& moments, const float* output, std::int64_t value_dim) {
  if (!moments.sampled()) return 0;
  double cross = 0;
  double square = 0;
  for (std::int64_t c = 0; c < value_dim; ++c) {
    const auto o = static_cast<double>(output[c]);
    cross += o * moments.value_ratio[static_cast<std::size_t>(c)];
    square += o * o;
  }
  const double sum = moments.value_square - 2 * cross + square * moments.ratio_square;
  return std::sqrt(std::max(sum, 0.0)) / moments.total();
}

double StudentQuantile(std::int64_t degrees) {
  if (degrees <= 2) return degrees == 2 ? 4.3027 : 12.7062;
  // Cornish & Fisher's expansion about the normal quantile z.
  const double z = 1.959964;
  const double n = static_cast<double>(degrees);
  const double z3 = z * z * z;
  const double z5 = z3 * z * z;
  const double z7 = z5 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n);
}

double ErrorBar(const ErrorMoments& moments, const float* output, std::int64_t value_dim) {
  if (!moments.sampled()) return 0;
  return StudentQuantile(moments.pairs) * StandardError(moments, output, value_dim);
}

LogInterval LogNormalizerInterval(const ErrorMoments& moments) {
  double low = moments.residual_low;
  double high = moments.residual_high;
  if (moments.sampled()) {
    const double l = std::log(3 / kMissRate);
    const double deviation =
        std::sqrt(2 * moments.ratio_square * l) + 7.0 / 3.0 * moments.range * l;
    low = std::max(low, moments.residual - deviation);
    high = std::min(high, moments.residual + deviation);
  }
  return {moments.reference + std::log(moments.exact + low),
          moments.reference + std::log(moments.exact + std::max(high, low))};
}

}  // namespace attnd::engine
