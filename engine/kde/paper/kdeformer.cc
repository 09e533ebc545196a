#include "engine/kde/paper/kdeformer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/gemm.h"
#include "engine/random.h"
#include "engine/simd/maps.h"
#include "engine/simd/softmax.h"
#include "engine/tensor.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kStepPanels = 16;
constexpr std::int64_t kStepRows = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<Kdeformer>> Kdeformer::Create(const AttentionInputs& inputs,
                                                             const KdeformerConfig& config,
                                                             const AttentionOutputs& outputs) {
  if (absl::Status status = CheckAttention(inputs); !status.ok()) return status;
  if (config.block_keys < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_keys is ", config.block_keys, "; it must be at least 1"));
  }
  if (config.samples < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples is ", config.samples, "; it must be at least 1"));
  }
  return std::unique_ptr<Kdeformer>(new Kdeformer(inputs, config, outputs));
}

std::int64_t Kdeformer::Bytes(const AttentionSizes& sizes, const KdeformerConfig& config) {
  const std::int64_t padded_value_dim = RoundUp(sizes.value_dim, kGemmColumnMultiple);
  const std::int64_t packed = 4 * (sizes.key_dim + 1 + padded_value_dim);
  const std::int64_t sampled = RoundUp(std::min(config.samples, sizes.keys), kPanelKeys);
  // Beside a key's panel: ranks, orders, and at most a dozen shares while columns are drawn.
  return RoundUp(sizes.keys, kPanelKeys) * (packed + 160) + sampled * (packed + 48) +
         sizes.queries * 48 +
         4 * (kTileQueries * SoftmaxSums::RowFloats(padded_value_dim) +
              sizes.key_dim * AngularHash::kBits) +
         (1 << 16);
}

Kdeformer::Kdeformer(const AttentionInputs& inputs, const KdeformerConfig& config,
                     const AttentionOutputs& outputs)
    : inputs_(inputs),
      config_(config),
      outputs_(outputs),
      hash_(StreamSeed(config.seed, 0), inputs.keys.dim) {}

bool Kdeformer::Step(Scratch& scratch) {
  if (inputs_.queries.count < 1) return true;
  switch (stage_) {
    case Stage::kHash:
      if (HashStep(scratch)) stage_ = Stage::kLayOut;
      break;
    case Stage::kLayOut:
      LayOut();
      stage_ = Stage::kPack;
      break;
    case Stage::kPack:
      if (PackStep()) stage_ = blocks_.blocks() == 1 ? Stage::kAttend : Stage::kPilotSums;
      break;
    case Stage::kPilotSums:
    case Stage::kPilotNorms:
      if (PilotStep(scratch)) {
        stage_ = stage_ == Stage::kPilotSums ? Stage::kPilotNorms : Stage::kNormShares;
      }
      break;
    case Stage::kNormShares:
      ShareNorms();
      stage_ = Stage::kShares;
      break;
    case Stage::kShares:
      MixShares();
      stage_ = Stage::kDraw;
      break;
    case Stage::kDraw:
      DrawSample();
      stage_ = Stage::kSample;
      break;
    case Stage::kSample:
      if (PackSample()) stage_ = Stage::kAttend;
      break;
    case Stage::kAttend:
      if (AttendStep(scratch)) stage_ = Stage::kDone;
      break;
    case Stage::kDone:
      break;
  }
  return stage_ == Stage::kDone;
}

// The ranks of some keys, then of some queries.
bool Kdeformer::HashStep(Scratch& scratch) {
  const bool keys = static_cast<std::int64_t>(key_ranks_.size()) < inputs_.keys.count;
  std::vector<std::uint32_t>& ranks = keys ? key_ranks_ : query_ranks_;
  Rows rows = keys ? inputs_.keys : inputs_.queries;
  const auto first = static_cast<std::int64_t>(ranks.size());
  const std::int64_t count = std::min(kStepRows, rows.count - first);
  rows.data = rows.row(first);
  rows.count = count;
  ranks.resize(static_cast<std::size_t>(first + count));
  hash_.Ranks(rows, ranks.data() + first, scratch);
  return !keys && first + count == inputs_.queries.count;
}

bool Kdeformer::PackStep() {
  const std::int64_t last =
      std::min(panel_ + kStepRows / kPanelKeys, block_panels_.keys().panels());
  for (; panel_ < last; ++panel_) {
    block_panels_.Pack(panel_, inputs_.keys, inputs_.values, blocks_.order().data(), nullptr);
    const std::int64_t end = std::min((panel_ + 1) * kPanelKeys, inputs_.values.count);
    for (std::int64_t i = panel_ * kPanelKeys; i < end; ++i) {
      const float* value = inputs_.values.row(i);
      value_norms_.push_back(DotF64(value, value, inputs_.values.dim));
    }
  }
  if (panel_ < block_panels_.keys().panels()) return false;
  panel_ = 0;
  return true;
}

void Kdeformer::LayOut() {
  blocks_ = SparseBlocks(key_ranks_, config_.block_keys);
  block_panels_ = KeyValuePanels(inputs_.keys.count, inputs_.keys, inputs_.values);
  LayOutQueries();
  sums_.resize(static_cast<std::size_t>(kTileQueries *
                                        SoftmaxSums::RowFloats(block_panels_.padded_value_dim())));

  for (std::int64_t i = 0; i < std::min(kPilots, inputs_.queries.count); ++i) {
    pilots_.push_back(
        inputs_.queries.count <= kPilots
            ? i
            : ToIndex(RandomAt(StreamSeed(config_.seed, 1), static_cast<std::uint64_t>(i)),
                      inputs_.queries.count));
  }
  pilot_max_.assign(pilots_.size(), -std::numeric_limits<float>::infinity());
  pilot_sum_.assign(pilots_.size(), 0.0F);
  pilot_norms_.assign(static_cast<std::size_t>(inputs_.keys.count), 0.0);
  value_norms_.reserve(static_cast<std::size_t>(inputs_.keys.count));
  keys_evaluated_.assign(static_cast<std::size_t>(inputs_.queries.count), 0);
}

void Kdeformer::LayOutQueries() {
  for (const std::uint32_t rank : query_ranks_) query_blocks_.push_back(blocks_.BlockOfRank(rank));
  query_order_.resize(query_blocks_.size());
  std::iota(query_order_.begin(), query_order_.end(), 0);
  std::stable_sort(query_order_.begin(), query_order_.end(),
                   [&](std::int64_t a, std::int64_t b) { return query_block(a) < query_block(b); });
  for (std::int64_t i = 0; i < inputs_.queries.count; ++i) {
    const std::int64_t block = query_block(query_order_[static_cast<std::size_t>(i)]);
    if (tiles_.empty() || tiles_.back().block != block || tiles_.back().count == kTileQueries) {
      tiles_.push_back({block, i, 0});
    }
    ++tiles_.back().count;
  }
}

// Some panels of all keys for the pilots: their normalizers, then the squared norms.
bool Kdeformer::PilotStep(Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const auto rows = static_cast<std::int64_t>(pilots_.size());
  const std::int64_t padded = GemmPaddedRows(rows);
  const float* packed = PackQueries(inputs_.queries, pilots_.data(), rows, inputs_.scale, scratch);
  float* scores = scratch.Take(padded * kPanelKeys);
  float* corrections = scratch.Take(padded);
  const KeyPanels& keys = block_panels_.keys();
  const std::int64_t last = std::min(panel_ + kStepPanels, keys.panels());
  for (; panel_ < last; ++panel_) {
    keys.Scores(packed, padded, panel_, scores);
    if (stage_ == Stage::kPilotSums) {
      const RowMask valid = keys.valid(panel_);
      OnlineSoftmaxBlock(scores, rows, &valid, 0, pilot_max_.data(), pilot_sum_.data(),
                         corrections);
    } else {
      AddPilotNorms(panel_, scores, scratch);
    }
  }
  if (panel_ < keys.panels()) return false;
  panel_ = 0;
  for (const std::int64_t pilot : pilots_) {
    keys_evaluated_[static_cast<std::size_t>(pilot)] = keys.keys();
  }
  return true;
}

void Kdeformer::AddPilotNorms(std::int64_t panel, const float* scores, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  float* weights = scratch.Take(kPanelKeys);
  const std::int64_t block = blocks_.BlockOfPlace(panel * kPanelKeys);
  const std::int64_t first = panel * kPanelKeys;
  const std::int64_t count = std::min(kPanelKeys, inputs_.keys.count - first);
  for (std::size_t r = 0; r < pilots_.size(); ++r) {
    // A row that overflows says nothing about columns.
    if (query_block(pilots_[r]) == block || !std::isfinite(pilot_sum_[r])) continue;
    ExpShifted(scores + static_cast<std::int64_t>(r) * kPanelKeys, pilot_max_[r],
               -std::log(pilot_sum_[r]), weights, count);
    for (std::int64_t c = 0; c < count; ++c) {
      const auto weight = static_cast<double>(weights[c]);
      pilot_norms_[static_cast<std::size_t>(first + c)] += weight * weight;
    }
  }
}

// Shares are by place, so that strata are runs of neighbouring buckets and a block's own columns a
// run.
void Kdeformer::ShareNorms() {
  std::vector<double> log_norms;
  log_norms.reserve(pilot_norms_.size());
  for (const double norm : pilot_norms_) log_norms.push_back(std::log(norm));
  norm_shares_ = SharesOfLogs(log_norms);
}

void Kdeformer::MixShares() {
  const std::vector<std::int64_t>& order = blocks_.order();
  std::vector<double> value_shares;
  const std::vector<double> by_key = SharesOf(std::move(value_norms_));
  if (!by_key.empty()) {
    for (const std::int64_t key : order)
      value_shares.push_back(by_key[static_cast<std::size_t>(key)]);
  }
  const std::array<std::vector<double>, 3> shares = {
      std::move(norm_shares_), std::move(value_shares),
      std::vector<double>(order.size(), 1 / static_cast<double>(order.size()))};
  by_place_ = MeanShares(shares);
}

void Kdeformer::DrawSample() {
  const std::vector<std::int64_t>& order = blocks_.order();
  sample_ =
      DrawColumns(by_place_, config_.samples, Draws::kStratified, StreamSeed(config_.seed, 2));
  sample_places_ = sample_.columns;
  for (std::int64_t& column : sample_.columns) column = order[static_cast<std::size_t>(column)];
  sample_panels_ = KeyValuePanels(static_cast<std::int64_t>(sample_.columns.size()), inputs_.keys,
                                  inputs_.values);
  probabilities_.resize(order.size());
  for (std::size_t place = 0; place < order.size(); ++place) {
    probabilities_[static_cast<std::size_t>(order[place])] = by_place_[place];
  }
}

bool Kdeformer::PackSample() {
  const std::int64_t panels = sample_panels_.keys().panels();
  const std::int64_t last = std::min(panel_ + kStepRows / kPanelKeys, panels);
  for (; panel_ < last; ++panel_) {
    sample_panels_.Pack(panel_, inputs_.keys, inputs_.values, sample_.columns.data(),
                        sample_.log_weights.data());
  }
  if (panel_ < panels) return false;
  panel_ = 0;
  return true;
}

RowMask Kdeformer::VisibleSamples(std::int64_t panel, std::int64_t block) const {
  const auto begin = sample_places_.begin();
  const std::int64_t first =
      std::lower_bound(begin, sample_places_.end(), blocks_.first_place(block)) - begin;
  const std::int64_t last =
      std::lower_bound(begin, sample_places_.end(), blocks_.first_place(block + 1)) - begin;
  const auto bits_below = [&](std::int64_t sample) {
    return FirstRows(std::max<std::int64_t>(sample - panel * kPanelKeys, 0));
  };
  return sample_panels_.keys().valid(panel) & ~(bits_below(last) & ~bits_below(first));
}

bool Kdeformer::AttendStep(Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const Tile& tile = tiles_[tile_];
  const std::int64_t padded = GemmPaddedRows(tile.count);
  SoftmaxSums sums(sums_.data(), padded, block_panels_.padded_value_dim());
  if (panel_ == 0) {
    sums.Clear();
    tile_keys_ = 0;
  }
  const KeyValuePanels::Tile work = {tile.count,
                                     PackQueries(inputs_.queries, query_order_.data() + tile.first,
                                                 tile.count, inputs_.scale, scratch),
                                     scratch.Take(padded * kPanelKeys), scratch.Take(padded)};

  const std::int64_t first_own = blocks_.first_panel(tile.block);
  const std::int64_t own = blocks_.first_panel(tile.block + 1) - first_own;
  const std::int64_t panels = own + sample_panels_.keys().panels();
  const std::int64_t last = std::min(panel_ + kStepPanels, panels);
  for (; panel_ < last; ++panel_) {
    if (panel_ < own) {
      const std::int64_t panel = first_own + panel_;
      const RowMask valid = block_panels_.keys().valid(panel);
      tile_keys_ += std::popcount(valid);
      block_panels_.Add(panel, valid, work, sums);
      continue;
    }
    const RowMask visible = VisibleSamples(panel_ - own, tile.block);
    tile_keys_ += std::popcount(visible);
    if (visible != 0) sample_panels_.Add(panel_ - own, visible, work, sums);
  }
  if (panel_ < panels) return false;

  for (std::int64_t r = 0; r < tile.count; ++r) {
    std::int64_t& keys = keys_evaluated_[static_cast<std::size_t>(
        query_order_[static_cast<std::size_t>(tile.first + r)])];
    keys = std::max(keys, tile_keys_);
  }
  WriteTile(tile, sums);
  panel_ = 0;
  return ++tile_ == tiles_.size();
}

std::int64_t Kdeformer::evaluations() const {
  return std::accumulate(keys_evaluated_.begin(), keys_evaluated_.end(), std::int64_t{0});
}

void Kdeformer::WriteTile(const Tile& tile, const SoftmaxSums& sums) {
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const std::int64_t query = query_order_[static_cast<std::size_t>(tile.first + r)];
    const double log_normalizer =
        static_cast<double>(sums.max[r]) + std::log(static_cast<double>(sums.sum[r]));
    const bool ok =
        DivideSums(sums, r, log_normalizer, inputs_.values.dim, outputs_.outputs.row(query));
    if (outputs_.log_normalizers != nullptr) {
      outputs_.log_normalizers[query] =
          ok ? static_cast<float>(log_normalizer) : std::numeric_limits<float>::quiet_NaN();
    }
  }
}

double RefKdeformer(const AttentionInputs& inputs, const Kdeformer& chosen, std::int64_t query,
                    double* output) {
  const SparseBlocks& blocks = chosen.blocks();
  const std::int64_t block = chosen.query_block(query);
  std::vector<bool> own(static_cast<std::size_t>(inputs.keys.count), false);
  std::vector<std::pair<std::int64_t, double>> terms;  // key, score with the column's weight
  const auto add = [&](std::int64_t key, double log_weight) {
    double score = 0;
    for (std::int64_t c = 0; c < inputs.keys.dim; ++c) {
      score += static_cast<double>(inputs.queries.row(query)[c]) *
               static_cast<double>(inputs.keys.row(key)[c]);
    }
    terms.emplace_back(key, static_cast<double>(inputs.scale) * score + log_weight);
  };
  for (std::int64_t p = blocks.first_place(block); p < blocks.first_place(block + 1); ++p) {
    const std::int64_t key = blocks.order()[static_cast<std::size_t>(p)];
    own[static_cast<std::size_t>(key)] = true;
    add(key, 0);
  }
  const ColumnSample& sample = chosen.sample();
  for (std::size_t i = 0; i < sample.columns.size(); ++i) {
    const std::int64_t key = sample.columns[i];
    if (!own[static_cast<std::size_t>(key)]) add(key, sample.log_weights[i]);
  }
  double max = -std::numeric_limits<double>::infinity();
  for (const auto& [key, score] : terms) max = std::max(max, score);
  std::fill_n(output, inputs.values.dim, 0.0);
  double sum = 0;
  for (const auto& [key, score] : terms) {
    const double weight = std::exp(score - max);
    sum += weight;
    for (std::int64_t c = 0; c < inputs.values.dim; ++c) {
      output[c] += weight * static_cast<double>(inputs.values.row(key)[c]);
    }
  }
  for (std::int64_t c = 0; c < inputs.values.dim; ++c) output[c] /= sum;
  return max + std::log(sum);
}

}  // namespace attnd::engine
