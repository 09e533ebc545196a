// How far predicted masses of leaves are from true ones, learned from a span's own keys: some of
// them, evenly spaced, are asked as queries and answered both exactly and from summaries.
//
//  - Ratio of a leaf or branch: true over predicted masses, summed over the queries that would not
//    look further, drawn towards the ratio of all where it was given little mass.
//  - ErrorTable: for each threshold, the share of keys read, the queries' median ratio of true to
//    predicted masses of all that is not read, and the 95 % quantiles of the error and of the error
//    over its prediction.
//
// A query's own key is left out, and the leaf that holds it counts as read: a query is more like
// itself than any other query will be like a key. A pure function of the index and the scale. Not
// thread-safe; cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_MASS_CALIBRATION_H_
#define ATTND_ENGINE_KDE_INDEX_MASS_CALIBRATION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/kde/index/band_sums.h"
#include "engine/kde/index/branch_summary.h"
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

  // After all leaves: the ratios [leaves] and [branches].
  void LearnRatios(float* leaf_ratios, float* branch_ratios);

  // After the index has its ratios: the table but for its spread, which is given.
  ErrorTable Finish(float spread);

 private:
  static constexpr std::int64_t kQueries = 64;
  // Bands of leaves by the first threshold under which they are read; the last one: none.
  static constexpr std::int64_t kBands = kThresholds + 1;
  static_assert(kBands <= BandSums::kMostBands);

  struct Row {
    std::int64_t own_place = 0;  // of its key in the leaves
    float max = 0.0F;            // as in LeafQuery
    float reference = 0.0F;      // mass that thresholds are parts of
    bool usable = false;         // all its numbers are finite
  };

  // What each query makes of leaves, or of branches, on their own: [queries][columns].
  class Predictions {
   public:
    Predictions(std::int64_t rows, std::int64_t columns)
        : columns_(columns),
          square_errors_(static_cast<std::size_t>(rows * columns)),
          masses_(square_errors_.size()),
          bands_(square_errors_.size()) {}

    float* square_errors(std::int64_t row) { return square_errors_.data() + row * columns_; }
    float* masses(std::int64_t row) { return masses_.data() + row * columns_; }
    // The first threshold under which it is selected; kThresholds: none.
    std::uint8_t* bands(std::int64_t row) { return bands_.data() + row * columns_; }
    const float* square_errors(std::int64_t row) const {
      return square_errors_.data() + row * columns_;
    }
    const float* masses(std::int64_t row) const { return masses_.data() + row * columns_; }
    const std::uint8_t* bands(std::int64_t row) const { return bands_.data() + row * columns_; }

   private:
    std::int64_t columns_;
    std::vector<float> square_errors_;
    std::vector<float> masses_;
    std::vector<std::uint8_t> bands_;
  };

  // A summary's part of what is not read, at thresholds [from, until).
  struct Part {
    std::int64_t from = 0;
    std::int64_t until = 0;
    double weight = 0.0;
    double slope = 0.0;
    double square_error = 0.0;
    const float* values = nullptr;
  };

  void Predict(Scratch& scratch);
  void PredictRow(std::int64_t r, LeafQuery query, float* branch_masses, float* log_masses);
  // The first threshold, as parts of `reference`, under which each of `count` is selected.
  static void FirstThresholds(const float* square_errors, float reference, std::int64_t count,
                              std::uint8_t* bands);
  // A leaf is read where it and its branch are selected.
  std::int64_t ReadBand(std::int64_t row, std::int64_t leaf) const {
    return std::max(leaves_.bands(row)[leaf], branches_.bands(row)[leaf / kBranchLeaves]);
  }
  static void SetRatios(const std::vector<double>& truth, const std::vector<double>& predicted,
                        float* ratios);
  static Part PartOf(const SummaryTable& table, const Predictions& predictions, std::int64_t row,
                     std::int64_t i, std::int64_t from);
  void AddPrediction(std::int64_t row, const Part& part);
  void SumPredictions();
  std::array<double, kThresholds> MassRatios() const;
  struct RowError {
    double error = 0.0;
    double predicted = 0.0;
  };
  void RowErrors(std::int64_t row, const std::array<double, kThresholds>& ratios,
                 std::array<RowError, kThresholds>& errors) const;

  const HeadIndex& index_;
  const std::int64_t queries_;  // with padding: 64
  std::vector<Row> rows_;
  std::vector<float> queries_rows_;  // [64, d_k]
  Predictions branches_;
  Predictions leaves_;
  std::vector<float> followed_;     // [64, padded d_v]: q^T G
  std::vector<float> true_masses_;  // [64, columns], relative to exp(true_max_ then)
  std::vector<float> true_maxima_;  // [64, columns]: what true_max_ was
  std::vector<float> true_max_;     // [64]: largest score so far
  BandSums true_sums_;              // padded d_v and the mass, relative to exp(true_max_)
  BandSums predicted_sums_;         // the same and e^2, relative to exp(max)
  std::int64_t next_leaf_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_MASS_CALIBRATION_H_
