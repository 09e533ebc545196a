// What the sampling methods of density.h share: how many samples a query takes, and what its answer
// is.
//
// A Sampler is the method: it gives one sample's term after the other, for all queries that still
// want one. Thread safety as in density.h.
#ifndef ATTND_ENGINE_KDE_PAPER_SAMPLED_DENSITY_H_
#define ATTND_ENGINE_KDE_PAPER_SAMPLED_DENSITY_H_

#include <cstdint>
#include <memory>
#include <span>

#include "engine/kde/paper/density.h"

namespace attnd::engine {

class Sampler {
 public:
  virtual ~Sampler() = default;
  // Samples are asked for in ascending order from 0, this many at a time in one step.
  virtual std::int64_t step_samples() const = 0;
  // ln of the term of sample `sample` for each query active[i], to log_terms[i]; its expectation is
  // the density. Returns the kernel values that were computed.
  virtual std::int64_t Sample(std::int64_t sample, std::span<const std::int64_t> active,
                              double* log_terms, Scratch& scratch) = 0;
};

// How an answer is found: by the rule of density.h with at most `samples` samples, or, with
// log_lower_bound -inf and epsilon 0, as the mean of exactly so many.
struct SamplingRule {
  std::int64_t samples = 0;
  double epsilon = 0;
  double log_lower_bound = 0;
};

std::unique_ptr<DensityRun> MakeSampledRun(std::unique_ptr<Sampler> sampler, Rows queries,
                                           const SamplingRule& rule, double* log_densities);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_SAMPLED_DENSITY_H_
