// WExpKDE of KDEformer (arXiv:2302.02451, Definition 3.1): alpha_j in (1 +- epsilon) sum_i v_i
// exp(<x_i, y_j>) for data x_i, weights v_i >= 0 and queries y_j, by Gaussian kernel densities as
// in Algorithm 2.
//
// Each x_i gets one more coordinate w_i with w_i^2 / 2 = ln S - ln(v_i e^{||x_i||^2 / 2}), S =
// sum_j v_j e^{||x_j||^2 / 2}; queries get a 0. Then (Eq. 7 and 8)
//   sum_i v_i e^{<x_i, y>} = n S e^{||y||^2 / 2} mu(y).
// The lower bound that a density wants is learned: it begins at 1 / n, above which mu cannot be
// (every term v_i e^{<x_i, y>} is at most v_i e^{||x_i||^2 / 2} e^{||y||^2 / 2}), and falls by
// kBoundFactor for the queries that were answered with 0, until all have an answer. As soon as
// exact sums cost less than what the next bound asks for, the rest is exact, and so it is when a
// bound asks for more samples than density.h allows.
//
// That mu is at most 1 / n has a price: uniform sampling would take at least 9 n / epsilon^2
// samples a query, more than there are points, and hashing 9 epsilon^-2 sqrt(n) tables at best,
// each a pass over the points. With as many queries as points, counting multiply-adds, hashing
// costs less than exact sums from about n = 2 10^5 on at epsilon 0.5, and from 4 10^8 at 0.1.
// `always_sample` turns the comparison of costs off, to measure what the methods do.
//
// Everything is in logarithms, so that no weight and no norm overflows. The answers are a function
// of data, weights, config and the whole batch of queries, because all decide what costs less; with
// always_sample an answer is a function of its own query.
//
// Thread safety: one thread at a time. The views are borrowed until the last Step. Failure: Create
// returns INVALID_ARGUMENT; Step cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_PAPER_WEIGHTED_EXP_DENSITY_H_
#define ATTND_ENGINE_KDE_PAPER_WEIGHTED_EXP_DENSITY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kde/paper/density.h"
#include "engine/kde/rows.h"
#include "engine/scratch.h"

namespace attnd::engine {

// By what the lower bound falls from one round to the next.
inline constexpr double kBoundFactor = 4;

struct WeightedExpConfig {
  DensityMethod method = DensityMethod::kHashing;
  double epsilon = 0.1;  // in (0, 1]
  std::uint64_t seed = 0;
  bool always_sample = false;
};

// How the answers came about.
struct WeightedExpCosts {
  std::int64_t bounds = 0;         // lower bounds that were tried
  std::int64_t exact_queries = 0;  // answered by exact sums
  std::int64_t evaluations = 0;    // kernel values
};

class WeightedExpDensity {
 public:
  // ln alpha_j to log_densities [queries.count]; log_weights [data.count], -inf for 0; null: ones.
  // -inf where all weights are 0. INVALID_ARGUMENT: no data, dimensions that differ, epsilon.
  static absl::StatusOr<std::unique_ptr<WeightedExpDensity>> Create(Rows data,
                                                                    const double* log_weights,
                                                                    Rows queries,
                                                                    const WeightedExpConfig& config,
                                                                    double* log_densities);

  // A piece of the work, as DensityRun's. True when all is written.
  bool Step(Scratch& scratch);
  WeightedExpCosts costs() const;

 private:
  WeightedExpDensity(Rows queries, const WeightedExpConfig& config, double* log_densities)
      : queries_(queries), config_(config), log_densities_(log_densities) {}

  void Augment(Rows data, const double* log_weights);
  void BeginRound();
  void EndRound();

  const Rows queries_;
  const WeightedExpConfig config_;
  double* const log_densities_;

  std::vector<float> rows_;  // of the points with a weight
  std::vector<double> heights_squared_;
  DensityPoints points_;
  double log_total_ = 0;  // ln S

  double log_lower_bound_ = 0;
  std::vector<std::int64_t> pending_;  // queries without an answer
  std::vector<float> pending_rows_;
  std::vector<double> pending_logs_;
  bool exact_ = false;  // of the round
  std::unique_ptr<const Density> density_;
  std::unique_ptr<DensityRun> run_;
  WeightedExpCosts costs_;
};

// ln sum_i v_i exp(<x_i, query>) by the definition, in f64, in two passes.
double RefLogWeightedExp(Rows data, const double* log_weights, const float* query);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_WEIGHTED_EXP_DENSITY_H_
