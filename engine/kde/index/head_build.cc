#include "engine/kde/index/head_build.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <span>

#include "engine/gemm.h"
#include "engine/kde/index/branch_summary.h"
#include "engine/kde/index/leaf_assignment.h"
#include "engine/simd/maps.h"
#include "engine/simd/nearest.h"
#include "engine/simd/totals.h"
#include "engine/simd/transpose.h"

namespace attnd::engine {
namespace {

// Keys move within their group, isolated ones are set apart, and the others move once more within
// so many neighbouring leaves; in the shortest spans they move once.
constexpr std::int64_t kNearLeaves = 64;
constexpr std::int64_t kNearKeys = kNearLeaves * kBlockTokens;
constexpr std::int64_t kLeastNearLeaves = 8;

// Spans of fewer leaves do not last.
constexpr std::int64_t kLeastTwinLeaves = 32;

// Of the centre's products with keys.
constexpr double kMostTilt = 1.0;

// Squares of larger components leave f32: such keys are not clustered, and their leaves are read.
constexpr float kMostComponent = 1e15F;

// What the stages cost, in nanoseconds per key of 128 components (Zen 4), to share the work out.
constexpr double kGatherCost = 200.0;
constexpr double kCutCost = 60.0;  // and level
constexpr double kOrderCost = 40.0;
constexpr double kReassignCost = 2.0;  // and leaf of the group
constexpr double kTwinCost = 150.0;
constexpr double kLeafCost = 400.0;
constexpr double kMetricCost = 500.0;
constexpr double kSlopeCost = 300.0;
constexpr double kBranchCost = 20.0;
constexpr double kCalibrateCost = 500.0;

// How many rows before it is read a row is asked for.
constexpr std::int64_t kAhead = 4;

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t CeilDivide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

HeadBuild::HeadBuild(const BlockLayout& layout, const SpanInput& input, std::int64_t head,
                     float scale)
    : layout_(layout), input_(input), head_(head), scale_(scale), values_seen_(layout.value_dim) {}

std::int64_t HeadBuild::WorkBytes(const BlockLayout& layout, std::int64_t tokens) {
  // Rows, pointers to values, tokens, order and roots; then what the costliest of the first stages
  // has: means of leaves and sixteen bytes per key.
  const std::int64_t per_key =
      layout.key_dim * static_cast<std::int64_t>(sizeof(float)) + 8 + 4 + 4 + 4 + 16;
  const std::int64_t means = RoundUp(tokens, kBlockTokens * kGemmColumnMultiple) / kBlockTokens *
                             layout.key_dim * static_cast<std::int64_t>(sizeof(float));
  // 64 queries: six numbers per leaf, and the sums of their bands.
  const std::int64_t calibration = 64 * (tokens / kBlockTokens + 2 * kBlockTokens) * 24 +
                                   64 * (kThresholds + 1) * 2 * (layout.padded_value_dim + 2) * 8;
  const std::int64_t queries =
      64 * (layout.key_dim + layout.padded_value_dim) * static_cast<std::int64_t>(sizeof(float));
  return tokens * per_key + means + calibration + queries;
}

void HeadBuild::Advance(double cost, std::int64_t steps, Stage next) {
  done_cost_ += cost / static_cast<double>(std::max(steps, std::int64_t{1}));
  if (++step_ < steps) return;
  step_ = 0;
  stage_ = next;
}

// One block's or leaf's keys, turned back into rows; rows[j] < 0: none.
void HeadBuild::GatherBlock(const BlockView<float>& block, const std::int32_t* rows) {
  UntransposeKeys(block.keys_t, layout_.key_dim, rows, keys_.data());
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    if (rows[j] >= 0) values_[Index(rows[j])] = block.values + j * layout_.padded_value_dim;
  }
}

// Rows of keys_ are in the order of tokens, rows of order_ leaf by leaf.
void HeadBuild::GatherSpan(const HeadIndex& from, std::int64_t offset,
                           std::vector<std::int32_t>& loose) {
  std::vector<std::int32_t> rows(Index(from.leaves() * kBlockTokens), -1);
  for (std::int64_t token = 0; token < from.tokens(); ++token) {
    const std::int32_t place = from.place(token);
    if (place < 0) continue;
    rows[Index(place)] = static_cast<std::int32_t>(tokens_.size());
    tokens_.push_back(static_cast<std::int32_t>(offset + token));
  }
  for (std::int64_t leaf = 0; leaf < from.leaves(); ++leaf) {
    const std::int32_t* of_leaf = rows.data() + leaf * kBlockTokens;
    GatherBlock(from.leaf(leaf), of_leaf);
    const bool alike = std::isfinite(from.summaries().stats().variances[leaf]);
    std::vector<std::int32_t>& into = alike && from.LeafKeys(leaf) == kBlockTokens ? order_ : loose;
    std::copy_if(of_leaf, of_leaf + kBlockTokens, std::back_inserter(into),
                 [](std::int32_t row) { return row >= 0; });
  }
}

void HeadBuild::Gather() {
  const std::int64_t count = input_.CountKeys();
  index_ = std::make_unique<HeadIndex>(layout_, input_.span.tokens, count);
  keys_ = AlignedBuffer<float>::Uninitialized(count * layout_.key_dim);
  values_.resize(Index(count));
  tokens_.reserve(Index(count));
  order_.reserve(Index(count));
  std::vector<std::int32_t> loose;
  for (const auto& piece : input_.spans) {
    GatherSpan(*piece->heads[Index(head_)], piece->span.first - input_.span.first, loose);
  }
  kept_leaves_ = std::ssize(order_) / kBlockTokens;
  order_.insert(order_.end(), loose.begin(), loose.end());
  std::array<std::int32_t, kBlockTokens> rows;
  for (const auto& block : input_.blocks) {
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      const bool valid = ((block->valid >> j) & 1U) != 0;
      rows[Index(j)] = valid ? static_cast<std::int32_t>(tokens_.size()) : -1;
      if (!valid) continue;
      order_.push_back(rows[Index(j)]);
      tokens_.push_back(static_cast<std::int32_t>(block->first + j - input_.span.first));
    }
    GatherBlock(block->view(layout_, head_), rows.data());
  }
  roots_.resize(Index(index_->leaves() * kBlockTokens));
}

void HeadBuild::PlanCosts() {
  const auto keys = static_cast<double>(index_->keys());
  const double loose = keys - static_cast<double>(kept_leaves_ * kBlockTokens);
  first_leaves_cost_ =
      loose * kCutCost * std::log2(loose / static_cast<double>(kBlockTokens) + 1.0) +
      (kept_leaves_ > 0 ? keys * kOrderCost : 0.0);
  const auto group = static_cast<double>(std::min(index_->leaves(), kGroupLeaves));
  const auto near =
      static_cast<double>(NearPieces() > 0 ? std::min(index_->leaves(), kNearLeaves) : 0);
  reassign_cost_ = keys * kReassignCost * (near + group);
  total_cost_ = 1.0 + first_leaves_cost_ + reassign_cost_ +
                keys * (kGatherCost + (joins_twins() ? kTwinCost : 0.0) + kLeafCost +
                        (metric_ != nullptr ? kMetricCost : 0.0) +
                        (index_->metric() != nullptr ? kSlopeCost : 0.0) + kBranchCost +
                        (calibrates() ? kCalibrateCost : 0.0));
}

bool HeadBuild::joins_twins() const { return index_->leaves() >= kLeastTwinLeaves; }

std::int64_t HeadBuild::NearPieces() const {
  return index_->leaves() >= kLeastNearLeaves ? CeilDivide(index_->keys(), kNearKeys) : 0;
}

std::span<std::int32_t> HeadBuild::Piece(std::int64_t piece, std::int64_t keys) {
  const std::int64_t first = piece * keys;
  return std::span(order_).subspan(Index(first), Index(std::min(keys, index_->keys() - first)));
}

void HeadBuild::Reassign(Scratch& scratch) {
  const KeyMatrix keys = {keys_.data(), index_->keys(), layout_.key_dim};
  const std::int64_t groups = CeilDivide(index_->keys(), kGroupKeys);
  if (step_ < groups) {
    ReassignLeaves(keys, Piece(step_, kGroupKeys), scratch);
    SetIsolatedKeysApart(keys, Piece(step_, kGroupKeys));
  } else {
    const std::int64_t piece = step_ - groups;
    const std::int64_t group = piece * kNearKeys / kGroupKeys;
    const std::int64_t first = piece * kNearKeys - group * kGroupKeys;
    const std::int64_t alike =
        FirstIsolatedLeaf(std::ssize(Piece(group, kGroupKeys))) * kBlockTokens - first;
    const std::span<std::int32_t> near = Piece(piece, kNearKeys);
    ReassignLeaves(keys, near.first(Index(std::min(std::ssize(near), alike))), scratch);
  }
  Advance(reassign_cost_, groups + NearPieces(), joins_twins() ? Stage::kTwins : Stage::kLeaves);
}

// The centre is the mean of the keys as queries, in f64, but so short that its products with keys
// deviate by kMostTilt at most: one giant key would else decide it, and about a centre far from all
// queries a leaf's weights tell of the wrong keys. Zero where squares of keys leave f32.
void HeadBuild::BeginMetric(bool fits) {
  if (!calibrates()) return;
  if (!is_main()) {
    index_->ShareMetric(input_.lender->heads[Index(head_)]->metric(), /*own=*/false);
    return;
  }
  if (!LeafMetric::Enough(layout_, index_->keys())) return;
  const auto n = static_cast<double>(index_->keys());
  std::vector<double> sums(Index(layout_.key_dim));
  for (std::int64_t i = 0; fits && i < index_->keys(); ++i) {
    AddToTotals(keys_.data() + i * layout_.key_dim, 1.0, sums.data(), layout_.key_dim);
  }
  std::vector<float> centre;
  for (const double sum : sums) {
    centre.push_back(static_cast<float>(sum / n * static_cast<double>(scale_)));
  }
  double sum = 0.0;
  double square = 0.0;
  for (std::int64_t i = 0; fits && i < index_->keys(); ++i) {
    const auto product = static_cast<double>(
        Dot(centre.data(), keys_.data() + i * layout_.key_dim, layout_.key_dim));
    sum += product;
    square += product * product;
  }
  const double deviation = std::sqrt(std::max(square / n - sum / n * (sum / n), 0.0));
  const double shrink = deviation > kMostTilt ? kMostTilt / deviation : 1.0;
  for (float& component : centre) {
    component = static_cast<float>(static_cast<double>(component) * shrink);
  }
  if (!AllFinite(centre.data(), layout_.key_dim)) std::fill(centre.begin(), centre.end(), 0.0F);
  metric_ = std::make_shared<LeafMetric>(layout_, centre.data());
  index_->ShareMetric(metric_, /*own=*/true);
}

void HeadBuild::WriteLeaf(std::int64_t leaf) {
  HeadIndex& index = *index_;
  const std::int64_t first = leaf * kBlockTokens;
  const std::int64_t count = std::min(kBlockTokens, index.keys() - first);
  const std::int32_t* rows = order_.data() + first;
  float* keys_t = index.blocks() + leaf * layout_.elements();
  float* values = keys_t + layout_.key_elements();
  if (count < kBlockTokens) std::fill_n(keys_t, layout_.elements(), 0.0F);
  std::array<std::int32_t, kBlockTokens> tokens{};
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int32_t row = rows[j];
    const std::int32_t ahead = rows[std::min(j + kAhead, count - 1)];
    PrefetchRow(values_[Index(ahead)], layout_.padded_value_dim);
    std::copy_n(values_[Index(row)], layout_.padded_value_dim,
                values + j * layout_.padded_value_dim);
    tokens[Index(j)] = tokens_[Index(row)];
  }
  TransposeRows({keys_.data(), layout_.key_dim, rows, count}, keys_t);
  index.SetLeaf(leaf, {keys_t, values, FirstRows(count)}, tokens.data());
  const std::int64_t group = leaf / kGroupLeaves * kGroupLeaves;
  const std::int64_t group_keys = std::min(kGroupKeys, index.keys() - group * kBlockTokens);
  index.Summarize(leaf, grouped_ && leaf - group >= FirstIsolatedLeaf(group_keys),
                  roots_.data() + first);
}

void HeadBuild::SetSlope(std::int64_t leaf, Scratch& scratch) {
  index_->summaries().SetSlope(leaf, index_->metric()->Slope(Means(leaf), scratch));
}

void HeadBuild::Step(Scratch& scratch) {
  switch (stage_) {
    case Stage::kGather: {
      Gather();
      const bool fits = MaxAbs(keys_.data(), index_->keys() * layout_.key_dim) <= kMostComponent;
      const auto keys = static_cast<double>(index_->keys());
      if (index_->keys() > 0) BeginMetric(fits);
      PlanCosts();
      Stage next = fits ? Stage::kFirstLeaves : Stage::kLeaves;
      if (index_->keys() == 0) next = Stage::kDone;
      if (next == Stage::kFirstLeaves) {
        first_leaves_.emplace(KeyMatrix{keys_.data(), index_->keys(), layout_.key_dim},
                              kept_leaves_, order_);
      }
      Advance(keys * kGatherCost, 1, next);
      return;
    }
    case Stage::kFirstLeaves:
      first_leaves_->Step();
      Advance(first_leaves_cost_, first_leaves_->steps(), Stage::kReassign);
      return;
    case Stage::kReassign:
      first_leaves_.reset();
      grouped_ = true;
      Reassign(scratch);
      return;
    case Stage::kTwins:
      if (!twins_) {
        twins_.emplace(KeyMatrix{keys_.data(), index_->keys(), layout_.key_dim}, order_);
      }
      twins_->Step(scratch);
      Advance(static_cast<double>(index_->keys()) * kTwinCost, TwinKeys::Steps(index_->keys()),
              Stage::kLeaves);
      return;
    case Stage::kLeaves: {
      twins_.reset();
      WriteLeaf(step_);
      values_seen_.Add(index_->leaf(step_).values, layout_.padded_value_dim,
                       index_->leaf(step_).valid);
      // While the leaf is in the cache.
      double cost = kLeafCost;
      if (metric_ != nullptr) {
        metric_->AddLeaf(Means(step_), scratch);
        cost += kMetricCost;
      } else if (index_->metric() != nullptr) {
        SetSlope(step_, scratch);
        cost += kSlopeCost;
      }
      Advance(static_cast<double>(index_->keys()) * cost, index_->leaves(),
              metric_ != nullptr ? Stage::kSlopes : Stage::kBranches);
      if (stage_ == Stage::kSlopes) metric_->Finish(index_->leaves());
      return;
    }
    case Stage::kSlopes:
      SetSlope(step_, scratch);
      Advance(static_cast<double>(index_->keys()) * kSlopeCost, index_->leaves(), Stage::kBranches);
      return;
    case Stage::kBranches:
      SummarizeBranch(index_->summaries(), index_->metric().get(), step_, index_->branches());
      Advance(static_cast<double>(index_->keys()) * kBranchCost, index_->branches().count(),
              calibrates() ? Stage::kCalibrate : Stage::kDone);
      if (stage_ == Stage::kDone) {
        ErrorTable errors = lender().errors();
        errors.spread = static_cast<float>(values_seen_.Spread());
        index_->SetErrors(errors);
      }
      return;
    case Stage::kCalibrate:
      if (!calibration_) calibration_.emplace(*index_, scale_, scratch);
      calibration_->ReadLeaf(scratch);
      Advance(static_cast<double>(index_->keys()) * kCalibrateCost, index_->leaves(), Stage::kDone);
      if (stage_ == Stage::kCalibrate) return;
      calibration_->LearnRatios(index_->summaries().ratios(), index_->branches().ratios());
      index_->SetErrors(calibration_->Finish(static_cast<float>(values_seen_.Spread())));
      calibration_.reset();
      return;
    case Stage::kDone:
      return;
  }
}

}  // namespace attnd::engine
