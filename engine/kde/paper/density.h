// Gaussian kernel density, mu(q) = 1/n sum_i exp(-||q - x_i||^2 / 2), with the interface of Theorem
// 2.1 of KDEformer (Zandieh et al. 2023, arXiv:2302.02451): a data set is prepared for an epsilon
// and a lower bound mu~; a query then returns (1 +- epsilon) mu, or 0 where mu is below mu~.
//
// Points have one coordinate more than queries, on which all queries are 0; it is given by its
// square, in f64, because Algorithm 2 makes it as large as the least weight is small. Densities are
// natural logarithms, -inf for 0: they leave the range of f64 as easily.
//
// Three methods:
//  - exact: O(n d) a query.
//  - uniform: the mean of k(q, x_i) over samples i. Var <= mu, so 4 / (epsilon^2 mu~) samples give
//  a
//    standard error of epsilon / 3.
//  - hashing: hashing_density.h.
// The sampling methods take as many samples as a query needs, up to a number that epsilon and mu~
// determine: they stop where the means of eight groups of samples say that the standard error is
// below epsilon / 3 and their median and mean agree to that. At the end of the samples the answer
// is the median of the means (which a single heavy term cannot spoil), or 0 if that is below mu~.
// So a wrong answer is possible, and answers are not unbiased; an Estimate with a number of samples
// fixed in advance is.
//
// Random numbers come from a seed (engine/random.h) and belong to the samples, not to queries: an
// answer does not depend on what else is asked.
//
// Thread safety: a Density is immutable, any thread; a DensityRun belongs to one thread at a time.
// Points and queries are borrowed until the objects made for them are gone. Failure: as
// absl::Status; whatever allocates may throw std::bad_alloc. Numbers are expected to be finite.
#ifndef ATTND_ENGINE_KDE_PAPER_DENSITY_H_
#define ATTND_ENGINE_KDE_PAPER_DENSITY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/kde/rows.h"
#include "engine/scratch.h"

namespace attnd::engine {

struct DensityPoints {
  Rows rows;
  // [rows.count], at least 0: the squares of the further coordinate. Null: zeros.
  const double* heights_squared = nullptr;

  double height_squared(std::int64_t i) const {
    return heights_squared == nullptr ? 0 : heights_squared[i];
  }
};

enum class DensityMethod { kExact, kUniform, kHashing };

struct DensityConfig {
  DensityMethod method = DensityMethod::kExact;
  double epsilon = 0.1;        // in (0, 1]
  double log_lower_bound = 0;  // ln mu~, at most 0
  std::uint64_t seed = 0;
};

// More samples for one query are refused: an exact sum is better long before. A sample of the
// hashing method costs a pass over the points.
inline constexpr std::int64_t kMaxUniformSamples = 1 << 22;
inline constexpr std::int64_t kMaxHashingSamples = 1 << 17;

// Answers to a batch of queries, computed piece by piece.
class DensityRun {
 public:
  virtual ~DensityRun() = default;
  // A piece of the work: a few million multiply-adds, or those of hashing the data set once. True
  // when all answers are written.
  virtual bool Step(Scratch& scratch) = 0;
  // Kernel values that have been computed for the batch so far.
  virtual std::int64_t evaluations() const = 0;
};

class Density {
 public:
  virtual ~Density() = default;

  // ln of the densities at queries [count, dim], as Theorem 2.1 has them, to log_densities [count].
  virtual std::unique_ptr<DensityRun> Query(Rows queries, double* log_densities) const = 0;
  // ln of the mean of `samples` samples per query, at least 1, whatever they are: the mean is an
  // unbiased estimate of mu. The exact method gives mu.
  virtual std::unique_ptr<DensityRun> Estimate(Rows queries, std::int64_t samples,
                                               double* log_densities) const = 0;
  // The most multiply-adds that Query takes for `queries` queries.
  virtual double Operations(std::int64_t queries) const = 0;
};

// INVALID_ARGUMENT: no points, no coordinates, or a config outside of its limits.
// RESOURCE_EXHAUSTED: more samples may be needed than are allowed.
absl::StatusOr<std::unique_ptr<const Density>> PreprocessDensity(const DensityPoints& points,
                                                                 const DensityConfig& config);

// The methods, for points and configs that PreprocessDensity has checked. `samples`: the most.
std::unique_ptr<const Density> MakeExactDensity(const DensityPoints& points);
std::unique_ptr<const Density> MakeUniformDensity(const DensityPoints& points,
                                                  const DensityConfig& config,
                                                  std::int64_t samples);
std::unique_ptr<const Density> MakeHashingDensity(const DensityPoints& points,
                                                  const DensityConfig& config,
                                                  std::int64_t samples);

// ln k(query, x_i), in f64.
double LogKernel(const DensityPoints& points, std::int64_t i, const float* query);

// ln mu(query) by the definition, in f64, in two passes.
double RefLogDensity(const DensityPoints& points, const float* query);

// Runs all steps.
void RunToEnd(DensityRun& run, Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_DENSITY_H_
