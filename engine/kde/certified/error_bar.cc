#include "engine/kde/certified/error_bar.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace attnd::engine {

double ErrorMoments::degrees_of_freedom() const {
  return pair_quartic > 0 ? std::max(pair_square * pair_square / pair_quartic, 1.0)
                          : static_cast<double>(pairs);
}

void ErrorMoments::ScaleTo(double to) {
  const double f = std::exp(reference - to);
  reference = to;
  exact *= f;
  residual *= f;
  residual_low *= f;
  residual_high *= f;
  range *= f;
  ratio_square *= f * f;
  value_square *= f * f;
  for (double& x : value_ratio) x *= f * f;
  pair_square *= f * f;
  pair_quartic *= f * f * f * f;
}

void ErrorMoments::AddPair(double unit, double x, double y, const float* x_vector,
                           const float* y_vector, const float* near, std::int64_t value_dim) {
  const double factor = unit * unit;
  const double b = x - y;
  double square = 0;
  double rest_square = 0;
  for (std::int64_t c = 0; c < value_dim; ++c) {
    const auto a = static_cast<double>(x_vector[c] - y_vector[c]);
    const double rest = a - b * static_cast<double>(near[c]);
    square += a * a;
    rest_square += rest * rest;
    value_ratio[static_cast<std::size_t>(c)] += a * b * factor;
  }
  ratio_square += b * b * factor;
  value_square += square * factor;
  pair_square += rest_square * factor;
  pair_quartic += rest_square * rest_square * factor * factor;
}

void MergeMoments(const ErrorMoments& from, ErrorMoments& into) {
  if (from.total() == 0 && from.residual_high == 0) return;
  if (into.total() == 0 && into.residual_high == 0) {
    into = from;
    return;
  }
  ErrorMoments other = from;
  const double reference = std::max(from.reference, into.reference);
  other.ScaleTo(reference);
  into.ScaleTo(reference);
  into.exact += other.exact;
  into.residual += other.residual;
  into.residual_low += other.residual_low;
  into.residual_high += other.residual_high;
  into.range = std::max(into.range, other.range);
  into.pairs += other.pairs;
  into.ratio_square += other.ratio_square;
  into.value_square += other.value_square;
  into.value_ratio.resize(std::max(into.value_ratio.size(), other.value_ratio.size()));
  for (std::size_t c = 0; c < other.value_ratio.size(); ++c) {
    into.value_ratio[c] += other.value_ratio[c];
  }
  into.pair_square += other.pair_square;
  into.pair_quartic += other.pair_quartic;
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

double StudentQuantile(double degrees) {
  // The exact quantile of the whole number below.
  if (degrees < 2) return 12.7062;
  if (degrees < 3) return 4.3027;
  // Cornish & Fisher's expansion about the normal quantile z.
  const double z = 1.959964;
  const double n = degrees;
  const double z3 = z * z * z;
  const double z5 = z3 * z * z;
  const double z7 = z5 * z * z;
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n) +
         (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * n * n * n);
}

double ErrorBar(const ErrorMoments& moments, const float* output, std::int64_t value_dim) {
  if (!moments.sampled()) return 0;
  return StudentQuantile(moments.degrees_of_freedom()) * StandardError(moments, output, value_dim);
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
