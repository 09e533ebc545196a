#include "engine/kde/index/mass_calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/gemm.h"
#include "engine/kde/index/leaf_query.h"
#include "engine/simd/maps.h"
#include "engine/simd/softmax.h"

namespace attnd::engine {
namespace {

// Ratios of leaves are learned where they are not read at this threshold, 1/256.
constexpr std::int64_t kRatioThreshold = 8;

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
      width_(index.layout().padded_value_dim + 1),
      rows_(Index(kQueries)),
      queries_rows_(Index(kQueries * index.layout().key_dim)),
      branches_(kQueries, index.branches().columns()),
      leaves_(kQueries, index.columns()),
      followed_(Index(kQueries * index.layout().padded_value_dim)),
      true_masses_(Index(kQueries * index.columns())),
      true_maxima_(Index(kQueries * index.columns())),
      true_max_(Index(kQueries), -std::numeric_limits<float>::infinity()),
      true_sums_(Index(kQueries * kBands * width_)),
      predicted_sums_(Index(kQueries * kBands * (width_ + 1))) {
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
  for (std::int64_t b = 0; b < index_.branches().count(); ++b) {
    const bool own = own_leaf / kBranchLeaves == b;
    branches_.bands(r)[b] =
        AlwaysLooksWithin(index_.branches().count())
            ? std::uint8_t{0}
            : FirstThreshold(branches_.square_errors(r)[b], kBranchShare * of_branches);
    if (branches_.bands(r)[b] == 0) {
      const std::int64_t first = b * kBranchLeaves;
      reference -= std::exp(static_cast<double>(branch_masses[b]) - static_cast<double>(row.max));
      reference += static_cast<double>(SumOfMasses(log_masses + first, kBranchLeaves, row.max));
    }
    if (own) branches_.bands(r)[b] = 0;
  }
  row.reference = static_cast<float>(reference);
  for (std::int64_t leaf = 0; leaf < index_.leaves(); ++leaf) {
    leaves_.bands(r)[leaf] =
        own_leaf == leaf ? 0 : FirstThreshold(leaves_.square_errors(r)[leaf], row.reference);
  }
  row.usable = row.usable && std::isfinite(row.max) && std::isfinite(row.reference) &&
               std::isfinite(query.square) && std::isfinite(query.length);
}

std::uint8_t MassCalibration::FirstThreshold(float square_error, float reference) {
  std::uint8_t i = 0;
  for (; i < kThresholds; ++i) {
    if (!(square_error <= SquareThreshold(Threshold(i) * reference))) break;
  }
  return i;
}

double* MassCalibration::Sums(std::vector<double>& sums, std::int64_t row, std::int64_t band) {
  const auto width = static_cast<std::int64_t>(sums.size()) / (kQueries * kBands);
  return sums.data() + (row * kBands + band) * width;
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
    if (corrections[r] != 1.0F) {
      double* all = Sums(true_sums_, r, 0);
      const auto factor = static_cast<double>(corrections[r]);
      for (std::int64_t i = 0; i < kBands * width_; ++i) all[i] *= factor;
    }
    double* band = Sums(true_sums_, r, ReadBand(r, leaf));
    for (std::int64_t c = 0; c < dv; ++c) band[c] += static_cast<double>(acc[r * dv + c]);
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
    double* sums = Sums(predicted_sums_, row, band);
    const double weight = sign * part.weight;
    for (std::int64_t c = 0; c < dv; ++c) {
      sums[c] += weight * (static_cast<double>(part.values[c]) +
                           part.slope * static_cast<double>(followed[c]));
    }
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

// True to predicted masses, ratios of leaves included, of what is not read at threshold i: each
// query's relative to its reference.
double MassCalibration::MassRatio(std::int64_t i) {
  const std::int64_t dv = index_.layout().padded_value_dim;
  double truth = 0.0;
  double predicted = 0.0;
  for (std::int64_t r = 0; r < queries_; ++r) {
    const Row& row = rows_[Index(r)];
    if (!row.usable) continue;
    const double shift = static_cast<double>(true_max_[Index(r)]) - static_cast<double>(row.max);
    double exact = 0.0;
    double summary = 0.0;
    for (std::int64_t band = i + 1; band < kBands; ++band) {
      exact += std::exp(shift) * Sums(true_sums_, r, band)[dv];
      summary += Sums(predicted_sums_, r, band)[dv];
    }
    if (!std::isfinite(exact)) continue;
    truth += exact / static_cast<double>(row.reference);
    predicted += summary / static_cast<double>(row.reference);
  }
  const double ratio = truth / predicted;
  return std::isfinite(ratio) ? std::clamp(ratio, kLeastRatio, kMostRatio) : 1.0;
}

// The error of one query's answer, in values, and the prediction of it without a factor, for every
// threshold; read and unread bands are added up once.
void MassCalibration::RowErrors(std::int64_t row, const std::array<double, kThresholds>& ratios,
                                std::array<RowError, kThresholds>& errors) {
  const std::int64_t dv = index_.layout().padded_value_dim;
  // Both sums relative to the larger maximum.
  const auto true_max = static_cast<double>(true_max_[Index(row)]);
  const auto max = static_cast<double>(rows_[Index(row)].max);
  const double true_factor = std::exp(true_max - std::max(true_max, max));
  const double factor = std::exp(max - std::max(true_max, max));
  std::vector<double> truth(Index(width_));
  std::vector<double> read(Index(width_));
  std::vector<double> unread(Index(width_ + 1));
  for (std::int64_t band = 0; band < kBands; ++band) {
    const double* exact = Sums(true_sums_, row, band);
    const double* predicted = Sums(predicted_sums_, row, band);
    for (std::size_t c = 0; c < truth.size(); ++c) truth[c] += true_factor * exact[c];
    for (std::size_t c = 0; c < unread.size(); ++c) unread[c] += predicted[c];
  }
  for (std::int64_t i = 0; i < kThresholds; ++i) {
    const double* exact = Sums(true_sums_, row, i);
    const double* predicted = Sums(predicted_sums_, row, i);
    for (std::size_t c = 0; c < read.size(); ++c) read[c] += true_factor * exact[c];
    for (std::size_t c = 0; c < unread.size(); ++c) unread[c] -= predicted[c];
    const double ratio = factor * ratios[Index(i)];
    const double mass = read[Index(dv)] + ratio * unread[Index(dv)];
    double square = 0.0;
    for (std::int64_t c = 0; c < dv; ++c) {
      const double off =
          (read[Index(c)] + ratio * unread[Index(c)]) / mass - truth[Index(c)] / truth[Index(dv)];
      square += off * off;
    }
    const double predicted_square = std::max(unread[Index(dv + 1)], 0.0);
    errors[Index(i)] = {std::sqrt(square), factor * std::sqrt(predicted_square) / mass};
  }
}

ErrorTable MassCalibration::Finish(float spread) {
  ErrorTable table;
  table.spread = spread;
  table.keys = index_.keys();
  SumPredictions();
  std::array<double, kThresholds> mass_ratios{};
  for (std::int64_t i = 0; i < kThresholds; ++i) {
    mass_ratios[Index(i)] = MassRatio(i);
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
