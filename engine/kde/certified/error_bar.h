// How far an answer is likely to be from the truth, from the sample that made it.
//
// An answer is o = N / D with N = N_E + N_R, D = D_E + D_R: what was evaluated exactly, and the
// residual, which pairs of independent draws estimate (residual_sample.h). Draw s has the ratio
// x_s of its true to its scanned weight, a value v_s and a control c_s, a vector whose weighted sum
// over the residual is known; S is the residual's scanned weight, m the number of draws:
//   D_R = S / m sum x_s,   N_R = sum_j w^_j c_j + S / m sum (x_s v_s - c_s).
// Both are unbiased; o is biased by O(1/m). To first order its error is the mean of
// (x_s (v_s - o) - c_s) S / D less its expectation, so that, with a and b the differences of
// x v - c and x within a pair,
//   SE^2 = (S / (m D))^2 sum over pairs ||a - b o||^2
// is an unbiased estimate of the squared error's expectation (E ||.||^2 = 2 Var, twice a draw's).
//
// The bar is SE times Student's two-sided 95 % quantile, which is what one component needs; with
// more components less would do (the squared error varies less), down to 1.1 instead of 1.96 at
// 100. Degrees of freedom are counted as pairs, the n of Satterthwaite's (sum z)^2 / sum z^2 over
// z = ||a - b o||^2: where few pairs carry the variance, SE is known no better than from those few.
//
// The normaliser. Every x_s is in [exp(-eta), exp(eta)], so one draw adds S / m x_s, of range c = S
// / m (exp(eta) - exp(-eta)), and with L = ln(3 / delta), with probability 1 - delta,
//   |D_R - truth| <= sqrt(2 V L) + 7/3 c L,   V = (S / m)^2 sum over pairs b^2.
// That is the empirical Bernstein bound (Maurer & Pontil 2009, theorem 4) for pairs: Bernstein's
// inequality takes 2 delta / 3 for its two sides; the variance is at most (sqrt(V) + c sqrt(2 L))^2
// but with probability delta / 3, because V is a sum of independent terms in [0, c^2] whose second
// moments are at most c^2 times their means. It holds for draws of unequal variance, hence for
// strata and for partitions. What is certain beside it: D_R is between sum w^ exp(-eta) and
// sum w^ exp(eta).
//
// Plain values; any thread.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_ERROR_BAR_H_
#define ATTND_ENGINE_KDE_CERTIFIED_ERROR_BAR_H_

#include <cstdint>
#include <vector>

namespace attnd::engine {

// delta of the interval of log-normalizers, and what bars may miss.
inline constexpr double kMissRate = 0.05;

// A partition's part of an answer's denominator and what its sample says about both. Partitions
// add: moments carry the factor S / m, and powers of exp(reference) are taken out of them.
struct ErrorMoments {
  double reference = 0.0;      // weights are relative to exp(reference)
  double exact = 0.0;          // D_E
  double residual = 0.0;       // D_R, estimated
  double residual_low = 0.0;   // for certain
  double residual_high = 0.0;  // for certain
  double range = 0.0;          // c, of the partition where it is largest
  std::int64_t pairs = 0;
  double ratio_square = 0.0;             // sum b^2 (S / m)^2
  double value_square = 0.0;             // sum ||a||^2 (S / m)^2
  std::vector<double> value_ratio = {};  // [d_v], sum a b (S / m)^2; empty: zeros
  // sum z (S / m)^2 and sum z^2 (S / m)^4, with a vector near o in place of o.
  double pair_square = 0.0;
  double pair_quartic = 0.0;

  double total() const { return exact + residual; }
  bool sampled() const { return pairs > 0; }
  double degrees_of_freedom() const;
  // Takes out exp(to) instead.
  void ScaleTo(double to);
  // Adds a pair of draws with ratios x and y and vectors x v - c [value_dim]. unit: S / m; near:
  // [value_dim], in place of o. value_ratio has its size.
  void AddPair(double unit, double x, double y, const float* x_vector, const float* y_vector,
               const float* near, std::int64_t value_dim);
};

// into = both together. Their references may differ.
void MergeMoments(const ErrorMoments& from, ErrorMoments& into);

// SE of the answer o [d_v] of all partitions, an absolute L2 error. 0 where all was evaluated.
double StandardError(const ErrorMoments& moments, const float* output, std::int64_t value_dim);

// The bar: not exceeded by the error of 95 % of answers.
double ErrorBar(const ErrorMoments& moments, const float* output, std::int64_t value_dim);

// Natural logarithms. Contains the log-normalizer with probability 1 - kMissRate, for certain where
// nothing was sampled. Does not count the rounding of what was evaluated exactly.
struct LogInterval {
  double low = 0.0;
  double high = 0.0;
};
LogInterval LogNormalizerInterval(const ErrorMoments& moments);

// Student's two-sided 95 % quantile for at least 1 degree of freedom: within 1 % from 3 on, above
// it below.
double StudentQuantile(double degrees);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_ERROR_BAR_H_
