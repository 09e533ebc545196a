#include "engine/kde/index/mass_calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>

#include "engine/gemm.h"
#include "engine/kde/index/leaf_query.h"
#include "engine/simd/maps.h"
#include "engine/simd/softmax.h"
#include "engine/simd/totals.h"
#include "engine/simd/weighted_sums.h"

namespace attnd::engine {
namespace {

// Ratios of leaves are learned where they are not read at this threshold.
constexpr std::int64_t kRatioThreshold = kDefaultThreshold;

// Ratios beyond these come from a handful of masses.
constexpr double kLeastRatio = 0.1;
constexpr double kMostRatio = 10.0;

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

// The smallest of the values that at least 95 % of further ones are expected not to exceed.
float Quantile95(std::vector<double>& values) {
  if (values.empty()) return 0.0F;
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  const auto rank = static_cast<std::size_t>(std::ceil(0.95 * (count + 1.0)));
  return static_cast<float>(values[std::min(rank, values.size()) - 1]);
}

}  // namespace

MassCalibration::MassCalibration(const HeadIndex& index, float scale, Scratch& scratch)
    : index_(index),
      queries_(std::min(kQueries, index.keys())),
      rows_(Index(kQueries)),
      queries_rows_(Index(kQueries * index.layout().key_dim)),
      branches_(kQueries, index.branches().columns()),
      leaves_(kQueries, index.columns()),
      followed_(Index(kQueries * index.layout().padded_value_dim)),
      true_masses_(Index(kQueries * index.columns())),
      true_maxima_(Index(kQueries * index.columns())),
      true_max_(Index(kQueries), -std::numeric_limits<float>::infinity()),
      true_sums_(kQueries, kBands, index.layout().padded_value_dim + 1),
      predicted_sums_(kQueries, kBands, index.layout().padded_value_dim + 2) {
  const std::int64_t d = index.layout().key_dim;
  for (std::int64_t r = 0; r < queries_; ++r) {
    const std::int64_t place = (2 * r + 1) * index.keys() / (2 * queries_);
    const float* keys_t = index.leaf(place / kBlockTokens).keys_t + place % kBlockTokens;
    float* query = queries_rows_.data() + r * d;
    for (std::int64_t c = 0; c < d; ++c) query[c] = keys_t[c * kBlockTokens] * scale;
    rows_[Index(r)].own_place = place;
  }
  Predict(scratch);
}

// Masses and errors of all branches and leaves as a query predicts them, and the thresholds under
// which it looks further.
void MassCalibration::Predict(Scratch& scratch) {
  const std::int64_t columns = index_.columns();
  const std::int64_t branch_columns = index_.branches().columns();
  const Scratch::Frame frame(scratch);
  float* log_masses = scratch.Take(kQueries * columns);
  float* branch_masses = scratch.Take(kQueries * branch_columns);
  float* squares = scratch.Take(kQueries);
  ScoreSummaries(index_.branches(), queries_rows_.data(), kQueries, branch_columns, branch_masses);
  ScoreSummaries(index_.summaries(), queries_rows_.data(), kQueries, columns, log_masses);
  float* offsets = scratch.Take(kQueries * index_.layout().key_dim);
  OffsetQueries(index_.metric().get(), index_.layout().key_dim, queries_rows_.data(), kQueries,
                offsets);
  LeafSquares(index_.metric().get(), index_.layout().key_dim, offsets, kQueries, squares, scratch);
  if (index_.metric() != nullptr) {
    FollowedValues(*index_.metric(), index_.layout(), offsets, kQueries, followed_.data());
  }
  for (std::int64_t r = 0; r < queries_; ++r) {
    const LeafQuery query = {
        .square = squares[r],
        .length = QueryLength(offsets + r * index_.layout().key_dim, index_.layout().key_dim)};
    PredictRow(r, query, branch_masses + r * branch_columns, log_masses + r * columns);
  }
}

void MassCalibration::PredictRow(std::int64_t r, LeafQuery query, float* branch_masses,
                                 float* log_masses) {
  Row& row = rows_[Index(r)];
  const LeafStats branches = index_.branches().stats();
  const std::int64_t own_leaf = row.own_place / kBlockTokens;
  row.max = LogMasses(branches, branch_masses);
  row.usable = !std::isnan(LogMasses(index_.summaries().stats(), log_masses));
  query.max = row.max;
  const float of_branches = SumOfMasses(branch_masses, branches.columns, row.max);
  auto reference = static_cast<double>(of_branches);
  PredictLeaves(branches, query, branch_masses, branches_.square_errors(r), branches_.masses(r));
  PredictLeaves(index_.summaries().stats(), query, log_masses, leaves_.square_errors(r),
                leaves_.masses(r));
  const std::int64_t count = index_.branches().count();
  std::uint8_t* bands = branches_.bands(r);
  if (AlwaysLooksWithin(count)) {
    std::fill_n(bands, count, std::uint8_t{0});
  } else {
    FirstThresholds(branches_.square_errors(r), kBranchShare * of_branches, count, bands);
  }
  for (std::int64_t b = 0; b < count; ++b) {
    if (bands[b] != 0) continue;
    const std::int64_t first = b * kBranchLeaves;
    reference -= std::exp(static_cast<double>(branch_masses[b]) - static_cast<double>(row.max));
    reference += static_cast<double>(SumOfMasses(log_masses + first, kBranchLeaves, row.max));
  }
  bands[own_leaf / kBranchLeaves] = 0;
  row.reference = static_cast<float>(reference);
  FirstThresholds(leaves_.square_errors(r), row.reference, index_.leaves(), leaves_.bands(r));
  leaves_.bands(r)[own_leaf] = 0;
  row.usable = row.usable && std::isfinite(row.max) && std::isfinite(row.reference) &&
               std::isfinite(query.square) && std::isfinite(query.length);
}

void MassCalibration::FirstThresholds(const float* square_errors, float reference,
                                      std::int64_t count, std::uint8_t* bands) {
  std::array<float, kThresholds> squares;
  for (std::int64_t i = 0; i < kThresholds; ++i) {
    squares[Index(i)] = SquareThreshold(Threshold(i) * reference);
  }
  // They descend, so that the first one is as far as there are larger ones.
  for (std::int64_t j = 0; j < count; ++j) {
    int larger = 0;
    for (const float square : squares) larger += square_errors[j] <= square ? 1 : 0;
    bands[j] = static_cast<std::uint8_t>(larger);
  }
}

void MassCalibration::ReadLeaf(Scratch& scratch) {
  const std::int64_t leaf = next_leaf_++;
  const BlockView<float> block = index_.leaf(leaf);
  const std::int64_t d = index_.layout().key_dim;
  const std::int64_t dv = index_.layout().padded_value_dim;
  const Scratch::Frame frame(scratch);
  float* scores = scratch.Take(kQueries * kBlockTokens);
  float* sums = scratch.Take(kQueries);
  float* corrections = scratch.Take(kQueries);
  float* acc = scratch.Take(kQueries * dv);
  GemmNN(kQueries, kBlockTokens, d, queries_rows_.data(), d, block.keys_t, kBlockTokens,
         /*accumulate=*/false, scores, kBlockTokens);
  std::array<RowMask, kQueries> visible{};
  for (std::int64_t r = 0; r < queries_; ++r) {
    const std::int64_t own = rows_[Index(r)].own_place - leaf * kBlockTokens;
    visible[Index(r)] =
        block.valid & (own >= 0 && own < kBlockTokens ? ~(RowMask{1} << own) : ~RowMask{0});
  }
  std::fill_n(sums, kQueries, 0.0F);
  OnlineSoftmaxBlock(scores, kQueries, visible.data(), 1, true_max_.data(), sums, corrections);
  GemmNN(kQueries, dv, kBlockTokens, scores, kBlockTokens, block.values, dv, /*accumulate=*/false,
         acc, dv);
  for (std::int64_t r = 0; r < queries_; ++r) {
    const auto at = Index(r * index_.columns() + leaf);
    true_masses_[at] = sums[r];
    true_maxima_[at] = true_max_[Index(r)];
    if (corrections[r] != 1.0F) true_sums_.Scale(r, static_cast<double>(corrections[r]));
    double* band = true_sums_.Of(r, ReadBand(r, leaf));
    AddToTotals(acc + r * dv, 1.0, band, dv);
    band[dv] += static_cast<double>(sums[r]);
  }
}

// Ratios from sums of true and predicted masses, drawn towards the ratio of all.
void MassCalibration::SetRatios(const std::vector<double>& truth,
                                const std::vector<double>& predicted, float* ratios) {
  double all_true = 0.0;
  double all_predicted = 0.0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    all_true += truth[i];
    all_predicted += predicted[i];
  }
  const double prior =
      0.5 * all_predicted / static_cast<double>(std::max(truth.size(), std::size_t{1}));
  const double overall = all_predicted > 0.0 ? all_true / all_predicted : 1.0;
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double ratio = (truth[i] + overall * prior) / (predicted[i] + prior);
    ratios[i] = std::isfinite(ratio)
                    ? static_cast<float>(std::clamp(ratio, kLeastRatio, kMostRatio))
                    : 1.0F;
  }
}

void MassCalibration::LearnRatios(float* leaf_ratios, float* branch_ratios) {
  const std::int64_t leaves = index_.leaves();
  const std::int64_t branches = index_.branches().count();
  std::vector<double> truth(Index(leaves));
  std::vector<double> predicted(Index(leaves));
  std::vector<double> branch_truth(Index(branches));
  std::vector<double> branch_predicted(Index(branches));
  for (std::int64_t r = 0; r < queries_; ++r) {
    const Row& row = rows_[Index(r)];
    if (!row.usable) continue;
    const auto reference = static_cast<double>(row.reference);
    for (std::int64_t leaf = 0; leaf < leaves; ++leaf) {
      const std::int64_t branch = leaf / kBranchLeaves;
      const bool of_leaf = leaves_.bands(r)[leaf] > kRatioThreshold;
      const bool of_branch = branches_.bands(r)[branch] > kRatioThreshold;
      if (!of_leaf && !of_branch) continue;
      const auto at = Index(r * index_.columns() + leaf);
      const double shift = static_cast<double>(true_maxima_[at]) - static_cast<double>(row.max);
      const double mass = static_cast<double>(true_masses_[at]) * std::exp(shift) / reference;
      if (!std::isfinite(mass)) continue;
      if (of_leaf) {
        truth[Index(leaf)] += mass;
        predicted[Index(leaf)] += static_cast<double>(leaves_.masses(r)[leaf]) / reference;
      }
      if (of_branch) branch_truth[Index(branch)] += mass;
    }
    for (std::int64_t b = 0; b < branches; ++b) {
      if (branches_.bands(r)[b] <= kRatioThreshold) continue;
      branch_predicted[Index(b)] += static_cast<double>(branches_.masses(r)[b]) / reference;
    }
  }
  SetRatios(truth, predicted, leaf_ratios);
  SetRatios(branch_truth, branch_predicted, branch_ratios);
}

// A summary is used from one band's threshold on up to another's: its part is added to what is not
// read at thresholds before `until`, and taken away before `from`.
void MassCalibration::AddPrediction(std::int64_t row, const Part& part) {
  if (part.until <= part.from) return;
  const std::int64_t dv = index_.layout().padded_value_dim;
  const float* followed = followed_.data() + row * dv;
  const auto add = [&](std::int64_t band, double sign) {
    double* sums = predicted_sums_.Of(row, band);
    const double weight = sign * part.weight;
    AddWeighted(part.values, part.slope, followed, weight, sums, dv);
    sums[dv] += weight;
    sums[dv + 1] += sign * part.square_error;
  };
  add(part.until, 1.0);
  if (part.from > 0) add(part.from, -1.0);
}

void MassCalibration::SumPredictions() {
  const SummaryTable& leaves = index_.summaries();
  const SummaryTable& branches = index_.branches();
  for (std::int64_t r = 0; r < queries_; ++r) {
    for (std::int64_t b = 0; b < branches.count(); ++b) {
      AddPrediction(r, PartOf(branches, branches_, r, b, 0));
    }
    for (std::int64_t leaf = 0; leaf < leaves.count(); ++leaf) {
      AddPrediction(r, PartOf(leaves, leaves_, r, leaf, branches_.bands(r)[leaf / kBranchLeaves]));
    }
  }
}

MassCalibration::Part MassCalibration::PartOf(const SummaryTable& table,
                                              const Predictions& predictions, std::int64_t row,
                                              std::int64_t i, std::int64_t from) {
  const LeafStats stats = table.stats();
  return {.from = from,
          .until = predictions.bands(row)[i],
          .weight = static_cast<double>(predictions.masses(row)[i]) *
                    static_cast<double>(stats.ratios[i]),
          .slope = static_cast<double>(stats.slopes[i]),
          .square_error = static_cast<double>(predictions.square_errors(row)[i]),
          .values = table.mean_value(i)};
}

// True to predicted masses, ratios of leaves included, of what is not read at each threshold: the
// queries' median. In a mean one of 64 queries, which meets a key like its own where none was
// expected, adds .06 to a ratio that is .95 for all others, and errors that all rows share are what
// an operator norm sees: 131,072 word vectors at a threshold of 1/256 .020, with the median .006.
std::array<double, kThresholds> MassCalibration::MassRatios() const {
  const std::int64_t dv = index_.layout().padded_value_dim;
  std::array<std::vector<double>, kThresholds> of_rows;
  for (std::int64_t r = 0; r < queries_; ++r) {
    const Row& row = rows_[Index(r)];
    if (!row.usable) continue;
    const double factor =
        std::exp(static_cast<double>(true_max_[Index(r)]) - static_cast<double>(row.max));
    double exact = 0.0;
    double summary = 0.0;
    for (std::int64_t i = kThresholds - 1; i >= 0; --i) {
      const double* read = true_sums_.Find(r, i + 1);
      const double* unread = predicted_sums_.Find(r, i + 1);
      if (read != nullptr) exact += factor * read[dv];
      if (unread != nullptr) summary += unread[dv];
      const double ratio = exact / summary;
      if (std::isfinite(ratio)) of_rows[Index(i)].push_back(ratio);
    }
  }
  std::array<double, kThresholds> ratios;
  ratios.fill(1.0);
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    if (of_rows[i].empty()) continue;
    const auto middle = of_rows[i].begin() + std::ssize(of_rows[i]) / 2;
    std::nth_element(of_rows[i].begin(), middle, of_rows[i].end());
    ratios[i] = std::clamp(*middle, kLeastRatio, kMostRatio);
  }
  return ratios;
}

// The error of one query's answer, in values, and the prediction of it without a factor, for every
// threshold; read and unread bands are added up once.
void MassCalibration::RowErrors(std::int64_t row, const std::array<double, kThresholds>& ratios,
                                std::array<RowError, kThresholds>& errors) const {
  const std::int64_t dv = index_.layout().padded_value_dim;
  // Both sums relative to the larger maximum.
  const auto true_max = static_cast<double>(true_max_[Index(row)]);
  const auto max = static_cast<double>(rows_[Index(row)].max);
  const double true_factor = std::exp(true_max - std::max(true_max, max));
  const double factor = std::exp(max - std::max(true_max, max));
  std::vector<double> truth(Index(true_sums_.width()));
  std::vector<double> read(Index(true_sums_.width()));
  std::vector<double> unread(Index(predicted_sums_.width()));
  const auto add = [&](const BandSums& sums, std::int64_t band, double weight,
                       std::vector<double>& to) {
    const double* from = sums.Find(row, band);
    if (from != nullptr) AddWeighted(from, weight, to.data(), sums.width());
  };
  for (std::int64_t band = 0; band < kBands; ++band) {
    add(true_sums_, band, true_factor, truth);
    add(predicted_sums_, band, 1.0, unread);
  }
  ScaleSums(1.0 / truth[Index(dv)], truth.data(), dv);
  for (std::int64_t i = 0; i < kThresholds; ++i) {
    add(true_sums_, i, true_factor, read);
    add(predicted_sums_, i, -1.0, unread);
    const double ratio = factor * ratios[Index(i)];
    const double mass = read[Index(dv)] + ratio * unread[Index(dv)];
    const double square =
        SquaredDifference(read.data(), ratio, unread.data(), 1.0 / mass, truth.data(), dv);
    const double predicted_square = std::max(unread[Index(dv + 1)], 0.0);
    errors[Index(i)] = {std::sqrt(square), factor * std::sqrt(predicted_square) / mass};
  }
}

ErrorTable MassCalibration::Finish(float spread) {
  ErrorTable table;
  table.spread = spread;
  table.keys = index_.keys();
  SumPredictions();
  const std::array<double, kThresholds> mass_ratios = MassRatios();
  for (std::int64_t i = 0; i < kThresholds; ++i) {
    table.mass_ratios[Index(i)] = static_cast<float>(mass_ratios[Index(i)]);
  }
  std::array<std::vector<double>, kThresholds> errors;
  std::array<std::vector<double>, kThresholds> factors;
  std::array<double, kBands> keys{};
  for (std::int64_t r = 0; r < queries_; ++r) {
    for (std::int64_t leaf = 0; leaf < index_.leaves(); ++leaf) {
      keys[Index(ReadBand(r, leaf))] += static_cast<double>(index_.LeafKeys(leaf));
    }
    if (!rows_[Index(r)].usable || spread == 0.0F) continue;
    std::array<RowError, kThresholds> of_row;
    RowErrors(r, mass_ratios, of_row);
    for (std::size_t i = 0; i < of_row.size(); ++i) {
      const double error = of_row[i].error / static_cast<double>(spread);
      if (!std::isfinite(error)) continue;
      errors[i].push_back(error);
      // What is left of differences is not a prediction.
      if (of_row[i].predicted > 1e-9) factors[i].push_back(error / of_row[i].predicted);
    }
  }
  const auto all = static_cast<double>(queries_ * index_.keys());
  double read = 0.0;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    read += keys[i];
    table.key_shares[i] = static_cast<float>(read / all);
    table.errors[i] = Quantile95(errors[i]);
    table.factors[i] = Quantile95(factors[i]);
  }
  return table;
}

}  // namespace attnd::engine
