#include "engine/kde/paper/column_sampling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/gemm.h"
#include "engine/random.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

// Constant-factor accuracy is all that probabilities need.
constexpr double kColumnNormEpsilon = 0.5;
constexpr std::int64_t kStepPanels = 16;

std::vector<float> Scaled(Rows rows, double factor) {
  std::vector<float> scaled;
  scaled.reserve(static_cast<std::size_t>(rows.count * rows.dim));
  for (std::int64_t i = 0; i < rows.count; ++i) {
    for (std::int64_t c = 0; c < rows.dim; ++c) {
      scaled.push_back(static_cast<float>(factor * static_cast<double>(rows.row(i)[c])));
    }
  }
  return scaled;
}

}  // namespace

absl::Status CheckAttention(const AttentionInputs& inputs) {
  if (inputs.keys.count < 1 || inputs.keys.dim < 1 || inputs.values.dim < 1) {
    return absl::InvalidArgumentError(absl::StrCat("keys are ", inputs.keys.count, " rows of ",
                                                   inputs.keys.dim, " numbers, values have ",
                                                   inputs.values.dim, "; each must be at least 1"));
  }
  if (inputs.values.count != inputs.keys.count) {
    return absl::InvalidArgumentError(
        absl::StrCat("values are ", inputs.values.count, " rows; keys are ", inputs.keys.count));
  }
  if (inputs.queries.dim != inputs.keys.dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("queries have ", inputs.queries.dim, " numbers; keys have ", inputs.keys.dim));
  }
  if (!(inputs.scale > 0) || !std::isfinite(inputs.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale is ", inputs.scale, "; it must be positive and finite"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ColumnSampling>> ColumnSampling::Create(
    const AttentionInputs& inputs, const ColumnSamplingConfig& config,
    const AttentionOutputs& outputs) {
  if (absl::Status status = CheckAttention(inputs); !status.ok()) return status;
  if (config.samples < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples is ", config.samples, "; it must be at least 1"));
  }
  if (!(config.epsilon > 0 && config.epsilon <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("epsilon is ", config.epsilon, "; it must be above 0 and at most 1"));
  }
  return std::unique_ptr<ColumnSampling>(new ColumnSampling(inputs, config, outputs));
}

std::int64_t ColumnSampling::Bytes(const AttentionSizes& sizes,
                                   const ColumnSamplingConfig& config) {
  // Of a row in a density's stage: its scaled copy, the one with its height, its panel, and:
  constexpr std::int64_t kCodes = 128;   // hashes under 16 tables
  constexpr std::int64_t kPlaces = 96;   // four places for buckets
  constexpr std::int64_t kSums = 128;    // of a query's groups
  constexpr std::int64_t kNumbers = 96;  // logarithms, heights, orders
  const std::int64_t row = 12 * (sizes.key_dim + 1) + kCodes + kPlaces + kSums + kNumbers;
  const std::int64_t padded_value_dim = RoundUp(sizes.value_dim, kGemmColumnMultiple);
  const std::int64_t sampled = RoundUp(std::min(config.samples, sizes.keys), kPanelKeys);
  return (sizes.queries + sizes.keys) * row +
         sampled * (4 * (sizes.key_dim + 1 + padded_value_dim) + 32) +
         4 * kTileQueries * (SoftmaxSums::RowFloats(padded_value_dim) + 6 * (sizes.key_dim + 1)) +
         (1 << 16);
}

ColumnSampling::ColumnSampling(const AttentionInputs& inputs, const ColumnSamplingConfig& config,
                               const AttentionOutputs& outputs)
    : inputs_(inputs), config_(config), outputs_(outputs) {
  BeginNormalizers();
}

void ColumnSampling::BeginNormalizers() {
  const double root = std::sqrt(static_cast<double>(inputs_.scale));
  scaled_keys_ = Scaled(inputs_.keys, root);
  scaled_queries_ = Scaled(inputs_.queries, root);
  log_normalizers_.resize(static_cast<std::size_t>(inputs_.queries.count));
  const std::int64_t dim = inputs_.keys.dim;
  density_ = *WeightedExpDensity::Create(
      DenseRows(scaled_keys_.data(), inputs_.keys.count, dim), nullptr,
      DenseRows(scaled_queries_.data(), inputs_.queries.count, dim),
      {config_.method, config_.epsilon, StreamSeed(config_.seed, 0), config_.always_sample},
      log_normalizers_.data());
}

void ColumnSampling::BeginColumnNorms() {
  normalizer_costs_ = density_->costs();
  const double root = std::sqrt(2 * static_cast<double>(inputs_.scale));
  scaled_keys_ = Scaled(inputs_.keys, root);
  scaled_queries_ = Scaled(inputs_.queries, root);
  for (const double log_normalizer : log_normalizers_) log_weights_.push_back(-2 * log_normalizer);
  log_column_norms_.resize(static_cast<std::size_t>(inputs_.keys.count));
  const std::int64_t dim = inputs_.keys.dim;
  density_ = *WeightedExpDensity::Create(
      DenseRows(scaled_queries_.data(), inputs_.queries.count, dim), log_weights_.data(),
      DenseRows(scaled_keys_.data(), inputs_.keys.count, dim),
      {config_.method, kColumnNormEpsilon, StreamSeed(config_.seed, 1), config_.always_sample},
      log_column_norms_.data());
}

void ColumnSampling::BeginProduct() {
  column_norm_costs_ = density_->costs();
  density_.reset();
  scaled_keys_ = {};
  scaled_queries_ = {};
  const std::array<std::vector<double>, 2> shares = {SharesOfLogs(log_column_norms_),
                                                     SharesOfNorms(inputs_.values)};
  probabilities_ = MeanShares(shares);
  sample_ = DrawColumns(probabilities_, config_.samples, Draws::kIndependent,
                        StreamSeed(config_.seed, 2));
  panels_ = KeyValuePanels(static_cast<std::int64_t>(sample_.columns.size()), inputs_.keys,
                           inputs_.values);
  panels_.PackAll(inputs_.keys, inputs_.values, sample_.columns.data(), sample_.log_weights.data());
  sums_.resize(
      static_cast<std::size_t>(kTileQueries * SoftmaxSums::RowFloats(panels_.padded_value_dim())));
}

bool ColumnSampling::Step(Scratch& scratch) {
  if (inputs_.queries.count < 1) return true;
  switch (stage_) {
    case Stage::kNormalizers:
      if (density_->Step(scratch)) {
        BeginColumnNorms();
        stage_ = Stage::kColumnNorms;
      }
      break;
    case Stage::kColumnNorms:
      if (density_->Step(scratch)) {
        BeginProduct();
        stage_ = Stage::kProduct;
      }
      break;
    case Stage::kProduct:
      if (ProductStep(scratch)) stage_ = Stage::kDone;
      break;
    case Stage::kDone:
      break;
  }
  return stage_ == Stage::kDone;
}

bool ColumnSampling::ProductStep(Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  Rows tile_rows = inputs_.queries;
  tile_rows.data = inputs_.queries.row(first_query_);
  const std::int64_t rows = std::min(kTileQueries, inputs_.queries.count - first_query_);
  const std::int64_t padded = GemmPaddedRows(rows);
  SoftmaxSums sums(sums_.data(), padded, panels_.padded_value_dim());
  if (panel_ == 0) sums.Clear();
  const KeyValuePanels::Tile tile = {rows,
                                     PackQueries(tile_rows, nullptr, rows, inputs_.scale, scratch),
                                     scratch.Take(padded * kPanelKeys), scratch.Take(padded)};
  const std::int64_t last = std::min(panel_ + kStepPanels, panels_.keys().panels());
  for (; panel_ < last; ++panel_) panels_.Add(panel_, panels_.keys().valid(panel_), tile, sums);
  if (panel_ < panels_.keys().panels()) return false;

  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t query = first_query_ + r;
    const double log_normalizer = log_normalizers_[static_cast<std::size_t>(query)];
    const bool ok =
        DivideSums(sums, r, log_normalizer, inputs_.values.dim, outputs_.outputs.row(query));
    if (outputs_.log_normalizers != nullptr) {
      outputs_.log_normalizers[query] =
          ok ? static_cast<float>(log_normalizer) : std::numeric_limits<float>::quiet_NaN();
    }
  }
  first_query_ += rows;
  panel_ = 0;
  return first_query_ >= inputs_.queries.count;
}

void RefSampledProduct(const AttentionInputs& inputs, std::int64_t query, double log_normalizer,
                       const ColumnSample& sample, double* output) {
  std::fill_n(output, inputs.values.dim, 0.0);
  for (std::size_t i = 0; i < sample.columns.size(); ++i) {
    const std::int64_t column = sample.columns[i];
    double score = 0;
    for (std::int64_t c = 0; c < inputs.keys.dim; ++c) {
      score += static_cast<double>(inputs.queries.row(query)[c]) *
               static_cast<double>(inputs.keys.row(column)[c]);
    }
    const double weight = std::exp(static_cast<double>(inputs.scale) * score - log_normalizer +
                                   sample.log_weights[i]);
    for (std::int64_t c = 0; c < inputs.values.dim; ++c) {
      output[c] += weight * static_cast<double>(inputs.values.row(column)[c]);
    }
  }
}

}  // namespace attnd::engine
