// The hashing method: the hashing-based estimator of Charikar and Siminelakis (2017).
//
// Sample s is a table of its own: all points are hashed by one member of hash_family.h, and of the
// bucket B that holds the query one point X is chosen at random. With p(c) the probability that two
// points at distance c share a bucket,
//   Z = |B| / n  k(q, X) / p(||q - X||),  0 for an empty bucket,
// has the expectation mu over the tables: a point that is near is found as much more often as its
// term is divided by. The variance is about mu^2 / sqrt(mu), where a uniform sample's is mu^2 / mu.
//
// A table is made from its seed for a batch of queries and dropped, instead of kept: the tables of
// Theorem 2.1 would be epsilon^-2 mu^-1/2 copies of the data set. So a batch pays for hashing the
// data set once a sample. Projections are f32 products, distances f64.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/gemm.h"
#include "engine/kde/paper/density.h"
#include "engine/kde/paper/hash_family.h"
#include "engine/kde/paper/log_sum.h"
#include "engine/kde/paper/sampled_density.h"
#include "engine/random.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

// Rows [count, dim + 1] with the further coordinate, and readable up to a whole product's.
AlignedBuffer<float> Extend(Rows rows, const DensityPoints* heights) {
  const std::int64_t inner = rows.dim + 1;
  AlignedBuffer<float> extended(RoundUp(rows.count, kGemmMaxRows) * inner);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* row = extended.data() + i * inner;
    std::copy_n(rows.row(i), rows.dim, row);
    if (heights != nullptr) {
      row[rows.dim] = static_cast<float>(std::sqrt(heights->height_squared(i)));
    }
  }
  return extended;
}

// The hash codes of many rows under a few tables at a time.
class TableHashes {
 public:
  TableHashes(const HashFamily& family, std::uint64_t seed, std::int64_t inner)
      : family_(family),
        seed_(seed),
        inner_(inner),
        tables_(std::max<std::int64_t>(1, kGemmColumnMultiple / family.functions())),
        columns_(RoundUp(tables_ * family.functions(), kGemmColumnMultiple)),
        directions_(inner * columns_),
        shifts_(static_cast<std::size_t>(columns_)) {}

  std::int64_t tables() const { return tables_; }

  // Draws the functions of `tables()` tables from `table` on.
  void Draw(std::int64_t table) {
    const auto functions = family_.functions();
    const float inverse_width = static_cast<float>(1 / family_.width());
    for (std::int64_t t = 0; t < tables_; ++t) {
      const std::uint64_t seed = StreamSeed(seed_, static_cast<std::uint64_t>(table + t));
      NormalGenerator normal(StreamSeed(seed, 0));
      for (std::int64_t f = t * functions; f < (t + 1) * functions; ++f) {
        for (std::int64_t c = 0; c < inner_; ++c) {
          directions_.data()[c * columns_ + f] = static_cast<float>(normal.Next()) * inverse_width;
        }
        shifts_[static_cast<std::size_t>(f)] =
            static_cast<float>(ToUniform(RandomAt(seed, static_cast<std::uint64_t>(f) + 1)));
      }
    }
  }

  // codes[t * count + i] of rows i of Extend()'s array.
  void Hash(const AlignedBuffer<float>& rows, std::int64_t count, std::vector<std::uint64_t>& codes,
            Scratch& scratch) const {
    codes.resize(static_cast<std::size_t>(tables_ * count));
    const Scratch::Frame frame(scratch);
    float* projections = scratch.Take(kGemmMaxRows * columns_);
    for (std::int64_t first = 0; first < count; first += kGemmMaxRows) {
      const std::int64_t n = std::min(kGemmMaxRows, count - first);
      GemmNN(GemmPaddedRows(n), columns_, inner_, rows.data() + first * inner_, inner_,
             directions_.data(), columns_, /*accumulate=*/false, projections, columns_);
      for (std::int64_t r = 0; r < n; ++r) {
        for (std::int64_t t = 0; t < tables_; ++t) {
          codes[static_cast<std::size_t>(t * count + first + r)] =
              Code(projections + r * columns_, t);
        }
      }
    }
  }

 private:
  // Different cells share a code with probability 2^-64.
  std::uint64_t Code(const float* projections, std::int64_t table) const {
    // Cells beyond are so far apart that no kernel value is left of them.
    constexpr float kFarCell = 1e9F;
    std::uint64_t code = 0;
    const std::int64_t functions = family_.functions();
    for (std::int64_t f = table * functions; f < (table + 1) * functions; ++f) {
      const float cell = std::floor(projections[f] + shifts_[static_cast<std::size_t>(f)]);
      const auto number = static_cast<std::int64_t>(std::clamp(cell, -kFarCell, kFarCell));
      code = MixBits(code + static_cast<std::uint64_t>(number) + kSplitMixStep);
    }
    return code;
  }

  const HashFamily& family_;
  const std::uint64_t seed_;
  const std::int64_t inner_;
  const std::int64_t tables_;   // per product
  const std::int64_t columns_;  // of it
  AlignedBuffer<float> directions_;
  std::vector<float> shifts_;
};

// The buckets of one table: how many points each holds, and one of them, chosen uniformly.
class Buckets {
 public:
  struct Bucket {
    std::uint64_t code = 0;
    std::int64_t points = 0;  // 0: the place is free
    std::int64_t chosen = 0;
  };

  explicit Buckets(std::int64_t points) {
    std::size_t places = 2;
    while (places < 2 * static_cast<std::size_t>(points)) places *= 2;
    buckets_.resize(places);
  }

  // Point i replaces the one that its bucket has chosen before with the probability 1 / (its
  // place in the bucket).
  void Fill(const std::uint64_t* codes, std::int64_t points, std::uint64_t seed) {
    std::fill(buckets_.begin(), buckets_.end(), Bucket{});
    for (std::int64_t i = 0; i < points; ++i) {
      Bucket& bucket = buckets_[Place(codes[i])];
      bucket.code = codes[i];
      ++bucket.points;
      if (bucket.points == 1 ||
          ToIndex(RandomAt(seed, static_cast<std::uint64_t>(i)), bucket.points) == 0) {
        bucket.chosen = i;
      }
    }
  }

  const Bucket& Find(std::uint64_t code) const { return buckets_[Place(code)]; }

 private:
  std::size_t Place(std::uint64_t code) const {
    const std::size_t mask = buckets_.size() - 1;
    std::size_t place = static_cast<std::size_t>(code) & mask;
    while (buckets_[place].points != 0 && buckets_[place].code != code) place = (place + 1) & mask;
    return place;
  }

  std::vector<Bucket> buckets_;
};

class HashingDensity final : public Density {
 public:
  HashingDensity(const DensityPoints& points, const DensityConfig& config, std::int64_t samples)
      : points_(points),
        config_(config),
        samples_(samples),
        family_(config.log_lower_bound),
        extended_(Extend(points.rows, &points)) {}

  std::unique_ptr<DensityRun> Query(Rows queries, double* log_densities) const override {
    return Run(queries, {samples_, config_.epsilon, config_.log_lower_bound}, log_densities);
  }
  std::unique_ptr<DensityRun> Estimate(Rows queries, std::int64_t samples,
                                       double* log_densities) const override {
    return Run(queries, {samples}, log_densities);
  }
  double Operations(std::int64_t queries) const override {
    // Hashing a row's product costs about 8 multiply-adds a function beside the projection.
    const auto row = static_cast<double>(family_.functions() * (points_.rows.dim + 9));
    return static_cast<double>(samples_) * static_cast<double>(queries + points_.rows.count) * row;
  }

 private:
  friend class HashingSampler;
  std::unique_ptr<DensityRun> Run(Rows queries, const SamplingRule& rule,
                                  double* log_densities) const;

  const DensityPoints points_;
  const DensityConfig config_;
  const std::int64_t samples_;
  const HashFamily family_;
  const AlignedBuffer<float> extended_;
};

class HashingSampler final : public Sampler {
 public:
  HashingSampler(const HashingDensity& density, Rows queries)
      : density_(density),
        queries_(queries),
        extended_queries_(Extend(queries, nullptr)),
        hashes_(density.family_, StreamSeed(density.config_.seed, 0), queries.dim + 1),
        buckets_(density.points_.rows.count) {}

  std::int64_t step_samples() const override { return hashes_.tables(); }

  std::int64_t Sample(std::int64_t sample, std::span<const std::int64_t> active, double* log_terms,
                      Scratch& scratch) override {
    const std::int64_t points = density_.points_.rows.count;
    const std::int64_t table = sample % hashes_.tables();
    if (table == 0) {
      hashes_.Draw(sample);
      hashes_.Hash(density_.extended_, points, point_codes_, scratch);
      hashes_.Hash(extended_queries_, queries_.count, query_codes_, scratch);
    }
    buckets_.Fill(
        point_codes_.data() + table * points, points,
        StreamSeed(StreamSeed(density_.config_.seed, 1), static_cast<std::uint64_t>(sample)));
    std::int64_t evaluations = 0;
    for (std::size_t a = 0; a < active.size(); ++a) {
      const std::uint64_t code =
          query_codes_[static_cast<std::size_t>(table * queries_.count + active[a])];
      const Buckets::Bucket& bucket = buckets_.Find(code);
      log_terms[a] = kLogZero;
      if (bucket.points == 0) continue;
      const double log_kernel = LogKernel(density_.points_, bucket.chosen, queries_.row(active[a]));
      ++evaluations;
      log_terms[a] = log_kernel - density_.family_.LogCollision(std::sqrt(-2 * log_kernel)) +
                     std::log(static_cast<double>(bucket.points) / static_cast<double>(points));
    }
    return evaluations;
  }

 private:
  const HashingDensity& density_;
  const Rows queries_;
  const AlignedBuffer<float> extended_queries_;
  TableHashes hashes_;
  Buckets buckets_;
  std::vector<std::uint64_t> point_codes_;
  std::vector<std::uint64_t> query_codes_;
};

std::unique_ptr<DensityRun> HashingDensity::Run(Rows queries, const SamplingRule& rule,
                                                double* log_densities) const {
  return MakeSampledRun(std::make_unique<HashingSampler>(*this, queries), queries, rule,
                        log_densities);
}

}  // namespace

std::unique_ptr<const Density> MakeHashingDensity(const DensityPoints& points,
                                                  const DensityConfig& config,
                                                  std::int64_t samples) {
  return std::make_unique<HashingDensity>(points, config, samples);
}

}  // namespace attnd::engine
