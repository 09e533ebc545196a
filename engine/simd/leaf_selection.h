// What one query makes of the summaries of leaves: which leaves it has to read, and what the others
// weigh without being read.
//
// A leaf of n keys with mean key mu, variance v and radius R about mu is predicted to hold the mass
//   w = n exp(q . mu + s / 2), s = u v, u = the query's squared length in the metric of the leaves,
// which is what n normal keys hold in the mean, and to be wrong by
//   e = w sqrt((exp(2 s) - 1) / n),
// their standard deviation. Where s is above 20 both are n exp(q . mu + |q| R), which no leaf
// exceeds. Leaves with e above a threshold, or not comparable with it, are selected.
//
// Branches, which are larger and have leaves within, are met by the same formulas.
//
// All masses are relative to exp(max), max the largest ln n + q . mu of the row's branches; leaves
// of more than e^40 are selected. Arrays have
// `columns` elements, a multiple of 16; columns beyond the leaves have counts of 0. Sums run in 16
// fixed lanes; bits do not depend on the instruction set. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_LEAF_SELECTION_H_
#define ATTND_ENGINE_SIMD_LEAF_SELECTION_H_

#include <algorithm>
#include <cstdint>

namespace attnd::engine {

// What e^2 is compared with. Capped, so that sums of what is not selected stay finite.
constexpr float SquareThreshold(float threshold) { return std::min(threshold * threshold, 1e30F); }

// Borrowed.
struct LeafStats {
  std::int64_t columns = 0;
  const float* log_counts = nullptr;  // ln n; -inf: no leaf
  const float* noises = nullptr;      // 1 / n; 0: no leaf
  const float* variances = nullptr;   // v
  const float* radii = nullptr;       // R
  const float* ratios = nullptr;      // true masses to predicted ones
  const float* slopes = nullptr;      // of the first-order value term
};

// How a query row meets leaves.
struct LeafQuery {
  float max = 0.0F;
  float square = 0.0F;     // u
  float length = 0.0F;     // |q|
  float threshold = 0.0F;  // of e, relative to exp(max)
  float ratio = 1.0F;      // that all weights are multiplied with
  bool bounds = false;     // whether lower and upper of the totals are wanted
};

// Sums over the leaves that were not selected, relative to exp(max).
struct LeafTotals {
  float mass = 0.0F;          // of predictions times ratios
  float slope = 0.0F;         // the same, times slopes
  float square_error = 0.0F;  // of e^2
  float lower = 0.0F;         // n exp(q . mu): no more than the true mass (Jensen)
  float upper = 0.0F;         // n exp(q . mu + |q| R): no less
};

// scores[c] = q . mu_c becomes ln n_c + q . mu_c. Returns the largest, NaN if one is NaN or +inf.
float LogMasses(const LeafStats& leaves, float* scores);

// sum over c of exp(log_masses[c] - max), or e^40 where that is more or not a number.
float SumOfMasses(const float* log_masses, std::int64_t columns, float max);

// e^2 and w of every leaf, without ratios.
void PredictLeaves(const LeafStats& leaves, const LeafQuery& query, const float* log_masses,
                   float* square_errors, float* masses);

// Bit j of selected[b]: leaf 64 b + j is selected; `own` (-1: none) always is. log_masses become
// the weights of the leaves that are not selected: w times both ratios; 0 for the others.
LeafTotals SelectLeaves(const LeafStats& leaves, const LeafQuery& query, std::int64_t own,
                        float* log_masses, std::uint64_t* selected);

// The same with what PredictLeaves said of them.
LeafTotals SelectPredicted(const LeafStats& leaves, const LeafQuery& query, std::int64_t own,
                           const float* square_errors, const float* masses, float* log_masses,
                           std::uint64_t* selected);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_LEAF_SELECTION_H_
