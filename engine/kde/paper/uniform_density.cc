// The uniform method: sample s is the kernel value of the point number RandomAt(seed, s) of n.
#include <cmath>
#include <cstdint>
#include <memory>

#include "engine/kde/paper/density.h"
#include "engine/kde/paper/sampled_density.h"
#include "engine/random.h"

namespace attnd::engine {
namespace {

class UniformSampler final : public Sampler {
 public:
  UniformSampler(const DensityPoints& points, Rows queries, std::uint64_t seed)
      : points_(points), queries_(queries), seed_(seed) {}

  std::int64_t step_samples() const override { return 16; }

  std::int64_t Sample(std::int64_t sample, std::span<const std::int64_t> active, double* log_terms,
                      Scratch& /*scratch*/) override {
    const std::int64_t point =
        ToIndex(RandomAt(seed_, static_cast<std::uint64_t>(sample)), points_.rows.count);
    for (std::size_t a = 0; a < active.size(); ++a) {
      log_terms[a] = LogKernel(points_, point, queries_.row(active[a]));
    }
    return static_cast<std::int64_t>(active.size());
  }

 private:
  const DensityPoints points_;
  const Rows queries_;
  const std::uint64_t seed_;
};

class UniformDensity final : public Density {
 public:
  UniformDensity(const DensityPoints& points, const DensityConfig& config, std::int64_t samples)
      : points_(points), config_(config), samples_(samples) {}

  std::unique_ptr<DensityRun> Query(Rows queries, double* log_densities) const override {
    return Run(queries, {samples_, config_.epsilon, config_.log_lower_bound}, log_densities);
  }
  std::unique_ptr<DensityRun> Estimate(Rows queries, std::int64_t samples,
                                       double* log_densities) const override {
    return Run(queries, {samples}, log_densities);
  }
  double Operations(std::int64_t queries) const override {
    return static_cast<double>(samples_) * static_cast<double>(queries) *
           static_cast<double>(points_.rows.dim + 1);
  }

 private:
  std::unique_ptr<DensityRun> Run(Rows queries, const SamplingRule& rule,
                                  double* log_densities) const {
    return MakeSampledRun(std::make_unique<UniformSampler>(points_, queries, config_.seed), queries,
                          rule, log_densities);
  }

  const DensityPoints points_;
  const DensityConfig config_;
  const std::int64_t samples_;
};

}  // namespace

std::unique_ptr<const Density> MakeUniformDensity(const DensityPoints& points,
                                                  const DensityConfig& config,
                                                  std::int64_t samples) {
  return std::make_unique<UniformDensity>(points, config, samples);
}

}  // namespace attnd::engine
