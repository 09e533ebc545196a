// How far predicted masses of leaves are from true ones, learned from a span's own keys: some of
// them, evenly spaced, are asked as queries and answered both exactly and from summaries.
//
//  - Ratio of a leaf: true over predicted masses, summed over the queries that would not read the
//    leaf, drawn towards the ratio of all leaves where the leaf was given little mass.
//  - ErrorTable: for each threshold, the share of keys read, the ratio of true to predicted masses
//    of all that is not read, and the 95 % quantiles of the error and of the error over its
//    prediction.
//
// A query's own key is left out, and the leaf that holds it counts as read: a query is more like
// itself than any other query will be like a key. A pure function of the index and the scale. Not
// thread-safe; cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_MASS_CALIBRATION_H_
#define ATTND_ENGINE_KDE_INDEX_MASS_CALIBRATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/kde/index/head_index.h"
#include "engine/scratch.h"

namespace attnd::engine {

class MassCalibration {
 public:
  // Queries are 64 keys times `scale`, or all where there are fewer. `index` has leaves and
  // summaries and outlives this; its ratios are not read.
  MassCalibration(const HeadIndex& index, float scale, Scratch& scratch);

  // Reads the next leaf. Requires that there is one: as many calls as leaves.
  void ReadLeaf(Scratch& scratch);

  // After all leaves: the ratios [leaves].
  void LearnRatios(float* ratios) const;

  // After all leaves, with the ratios that leaves will have: the table but for its spread, which is
  // given.
  ErrorTable Finish(float spread, const float* ratios);

 private:
  static constexpr std::int64_t kQueries = 64;
  // Bands of leaves by the first threshold under which they are read; the last one: none.
  static constexpr std::int64_t kBands = kThresholds + 1;

  struct Row {
    std::int64_t own_place = 0;  // of its key in the leaves
    float max = 0.0F;            // as in LeafQuery
    float reference = 0.0F;      // mass that thresholds are parts of
    bool usable = false;         // all its numbers are finite
  };

  void Predict(Scratch& scratch);
  std::int64_t FirstThreshold(std::int64_t row, std::int64_t leaf) const;
  std::int64_t Band(std::int64_t row, std::int64_t leaf) const {
    return bands_[static_cast<std::size_t>(row * index_.columns() + leaf)];
  }
  static double* Sums(std::vector<double>& sums, std::int64_t row, std::int64_t band);
  void SumPredictions(const float* ratios);
  double MassRatio(std::int64_t i);
  struct RowError {
    double error = 0.0;
    double predicted = 0.0;
  };
  void RowErrors(std::int64_t row, const std::array<double, kThresholds>& ratios,
                 std::array<RowError, kThresholds>& errors);

  const HeadIndex& index_;
  const std::int64_t queries_;  // with padding: 64
  const std::int64_t width_;    // padded d_v, and the mass
  std::vector<Row> rows_;
  std::vector<float> queries_rows_;     // [64, d_k]
  std::vector<float> square_errors_;    // [64, columns]
  std::vector<float> masses_;           // [64, columns]
  std::vector<std::uint8_t> bands_;     // [64, columns]
  std::vector<float> followed_;         // [64, padded d_v]: q^T G
  std::vector<float> true_masses_;      // [64, columns], relative to exp(true_max_ then)
  std::vector<float> true_maxima_;      // [64, columns]: what true_max_ was
  std::vector<float> true_max_;         // [64]: largest score so far
  std::vector<double> true_sums_;       // [64][bands][width], relative to exp(true_max_)
  std::vector<double> predicted_sums_;  // [64][bands][width + 1], with e^2, relative to exp(max)
  std::int64_t next_leaf_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_MASS_CALIBRATION_H_
