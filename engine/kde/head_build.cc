#include "engine/kde/head_build.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>

#include "engine/gemm.h"
#include "engine/kde/centred_leaf.h"
#include "engine/kde/leaf_assignment.h"
#include "engine/simd/maps.h"
#include "engine/simd/nearest.h"
#include "engine/simd/transpose.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kReassignments = 2;

// Squares of larger components leave f32: such keys stay in their order, and their leaves are read.
constexpr float kMostComponent = 1e15F;

// What the stages cost, in nanoseconds per key of 128 components (Zen 4), to share the work out.
constexpr double kGatherCost = 200.0;
constexpr double kBisectCost = 60.0;   // and level
constexpr double kReassignCost = 2.0;  // and leaf of the group
constexpr double kLeafCost = 400.0;
constexpr double kMetricCost = 500.0;
constexpr double kSlopeCost = 300.0;
constexpr double kCalibrateCost = 500.0;

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

HeadBuild::HeadBuild(const BlockLayout& layout, const SpanInput& input, std::int64_t head,
                     float scale)
    : layout_(layout), input_(input), head_(head), scale_(scale) {}

std::int64_t HeadBuild::WorkBytes(const BlockLayout& layout, std::int64_t tokens) {
  // Rows, pointers to values, tokens and order; a bisection's projections come before calibration.
  const std::int64_t per_key =
      layout.key_dim * static_cast<std::int64_t>(sizeof(float)) + 8 + 4 + 4 + 8;
  // 64 queries: six numbers per leaf, and the sums of their bands.
  const std::int64_t calibration = 64 * (tokens / kBlockTokens + kBlockTokens) * 24 +
                                   64 * (kThresholds + 1) * 2 * (layout.padded_value_dim + 2) * 8;
  return tokens * per_key + calibration;
}

void HeadBuild::Advance(double cost, std::int64_t steps, Stage next) {
  done_cost_ += cost / static_cast<double>(std::max(steps, std::int64_t{1}));
  if (++step_ < steps) return;
  step_ = 0;
  stage_ = next;
}

// One block's or leaf's keys, turned back into rows; rows[j] < 0: none.
void HeadBuild::GatherBlock(const BlockView<float>& block, const std::int32_t* rows,
                            Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  float* turned = scratch.Take(kBlockTokens * kBlockTokens);
  for (std::int64_t c = 0; c < layout_.key_dim; c += kBlockTokens) {
    const std::int64_t width = std::min(kBlockTokens, layout_.key_dim - c);
    TransposeKeys(block.keys_t + c * kBlockTokens, kBlockTokens, width, kBlockTokens, turned);
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      if (rows[j] < 0) continue;
      std::copy_n(turned + j * kBlockTokens, width, keys_.data() + rows[j] * layout_.key_dim + c);
    }
  }
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    if (rows[j] >= 0) values_[Index(rows[j])] = block.values + j * layout_.padded_value_dim;
  }
}

void HeadBuild::Gather(Scratch& scratch) {
  const std::int64_t count = input_.CountKeys();
  index_ = std::make_unique<HeadIndex>(layout_, input_.span.tokens, count);
  keys_.resize(Index(count * layout_.key_dim));
  values_.resize(Index(count));
  tokens_.resize(Index(count));
  value_sum_.resize(Index(layout_.value_dim));
  std::int32_t row = 0;
  std::vector<std::int32_t> rows;
  for (const auto& piece : input_.spans) {
    const HeadIndex& from = *piece->heads[Index(head_)];
    const std::int64_t offset = piece->span.first - input_.span.first;
    rows.assign(Index(from.leaves() * kBlockTokens), -1);
    for (std::int64_t token = 0; token < from.tokens(); ++token) {
      const std::int32_t place = from.place(token);
      if (place < 0) continue;
      tokens_[Index(row)] = static_cast<std::int32_t>(offset + token);
      rows[Index(place)] = row++;
    }
    for (std::int64_t leaf = 0; leaf < from.leaves(); ++leaf) {
      GatherBlock(from.leaf(leaf), rows.data() + leaf * kBlockTokens, scratch);
    }
  }
  rows.resize(Index(kBlockTokens));
  for (const auto& block : input_.blocks) {
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      const bool valid = ((block->valid >> j) & 1U) != 0;
      if (valid) {
        tokens_[Index(row)] = static_cast<std::int32_t>(block->first + j - input_.span.first);
      }
      rows[Index(j)] = valid ? row++ : -1;
    }
    GatherBlock(block->view(layout_, head_), rows.data(), scratch);
  }
  order_.resize(Index(count));
  std::iota(order_.begin(), order_.end(), 0);
  PlanCosts();
}

void HeadBuild::PlanCosts() {
  const auto keys = static_cast<double>(index_->keys());
  const auto leaves = static_cast<double>(index_->leaves());
  const double group = std::min(leaves, static_cast<double>(kGroupKeys / kBlockTokens));
  total_cost_ =
      1.0 + keys * (kGatherCost + kBisectCost * std::log2(leaves + 1.0) +
                    static_cast<double>(kReassignments) * kReassignCost * group + kLeafCost +
                    kCalibrateCost + (index_->has_metric() ? kMetricCost + kSlopeCost : 0.0));
}

void HeadBuild::Reassign(Scratch& scratch) {
  const std::int64_t groups = (index_->keys() + kGroupKeys - 1) / kGroupKeys;
  const std::int64_t first = step_ % groups * kGroupKeys;
  const std::int64_t count = std::min(kGroupKeys, index_->keys() - first);
  ReassignLeaves({keys_.data(), index_->keys(), layout_.key_dim},
                 std::span(order_).subspan(Index(first), Index(count)), scratch);
}

void HeadBuild::WriteLeaf(std::int64_t leaf, Scratch& scratch) {
  const std::int64_t count = index_->LeafKeys(leaf);
  float* keys_t = index_->blocks_.data() + leaf * layout_.elements();
  float* values = keys_t + layout_.key_elements();
  std::int32_t* tokens = index_->leaf_tokens_.data() + leaf * kBlockTokens;
  if (count < kBlockTokens) {
    std::fill_n(keys_t, layout_.elements(), 0.0F);
    std::fill_n(tokens, kBlockTokens, 0);
  }
  const Scratch::Frame frame(scratch);
  float* rows = scratch.Take(kBlockTokens * layout_.key_dim);
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int32_t row = order_[Index(leaf * kBlockTokens + j)];
    std::copy_n(keys_.data() + row * layout_.key_dim, layout_.key_dim, rows + j * layout_.key_dim);
    std::copy_n(values_[Index(row)], layout_.padded_value_dim,
                values + j * layout_.padded_value_dim);
    tokens[j] = tokens_[Index(row)];
    index_->places_.data()[tokens[j]] = static_cast<std::int32_t>(leaf * kBlockTokens + j);
  }
  TransposeKeys(rows, layout_.key_dim, count, layout_.key_dim, keys_t);
  Summarize(leaf);
}

void HeadBuild::Summarize(std::int64_t leaf) {
  const std::int64_t count = index_->LeafKeys(leaf);
  const auto n = static_cast<double>(count);
  const std::int64_t d = layout_.key_dim;
  const BlockView<float> block = index_->leaf(leaf);
  float* mean_t =
      index_->means_t_.data() + leaf / kBlockTokens * layout_.key_elements() + leaf % kBlockTokens;
  std::array<double, kBlockTokens> distances{};
  double squares = 0.0;
  for (std::int64_t c = 0; c < d; ++c) {
    const float* component = block.keys_t + c * kBlockTokens;
    double sum = 0.0;
    for (std::int64_t j = 0; j < count; ++j) sum += static_cast<double>(component[j]);
    const auto mean = static_cast<float>(sum / n);
    mean_t[c * kBlockTokens] = mean;
    for (std::int64_t j = 0; j < count; ++j) {
      const double off = static_cast<double>(component[j]) - static_cast<double>(mean);
      distances[Index(j)] += off * off;
    }
  }
  double radius = 0.0;
  for (std::int64_t j = 0; j < count; ++j) {
    squares += distances[Index(j)];
    radius = std::max(radius, distances[Index(j)]);
  }
  float* mean_value = index_->mean_values_.data() + leaf * layout_.padded_value_dim;
  for (std::int64_t c = 0; c < layout_.value_dim; ++c) {
    double sum = 0.0;
    for (std::int64_t j = 0; j < count; ++j) {
      const auto value = static_cast<double>(block.values[j * layout_.padded_value_dim + c]);
      sum += value;
      value_squares_ += value * value;
    }
    value_sum_[Index(c)] += sum;
    mean_value[c] = static_cast<float>(sum / n);
  }
  index_->stat(0)[leaf] = static_cast<float>(std::log(n));
  index_->stat(1)[leaf] = static_cast<float>(1.0 / n);
  index_->stat(2)[leaf] = static_cast<float>(squares / n / static_cast<double>(d));
  // Rounded up, so that the bound holds with what f32 makes of it.
  index_->stat(3)[leaf] = static_cast<float>(std::sqrt(radius) * (1.0 + 1e-6));
  index_->stat(4)[leaf] = 1.0F;
}

void HeadBuild::AddToMetric(std::int64_t leaf, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t width = index_->padded_key_dim();
  float* keys = scratch.Take(kBlockTokens * width);
  float* values = scratch.Take(kBlockTokens * layout_.padded_value_dim);
  CentreLeaf(*index_, leaf, keys, values);
  const std::int64_t d = layout_.key_dim;
  float* covariance = index_->metric_.data();
  float* cross = covariance + d * width;
  const std::int64_t columns = layout_.padded_value_dim;
  float* product = scratch.Take(width * std::max(width, columns));
  GemmTN(width, width, kBlockTokens, keys, width, keys, width, /*accumulate=*/false, product,
         width);
  AddRow(product, covariance, d * width);
  GemmTN(width, columns, kBlockTokens, keys, width, values, columns, /*accumulate=*/false, product,
         columns);
  AddRow(product, cross, d * columns);
}

// Sums become P, whose trace is d_k, and the mean cross-covariance. Where keys do not vary or
// numbers are not finite P is the unit matrix and G zero.
void HeadBuild::FinishMetric() {
  const std::int64_t d = layout_.key_dim;
  const std::int64_t width = index_->padded_key_dim();
  float* covariance = index_->metric_.data();
  float* cross = covariance + d * width;
  double trace = 0.0;
  for (std::int64_t c = 0; c < d; ++c) trace += static_cast<double>(covariance[c * width + c]);
  const double factor = static_cast<double>(d) / trace;
  const double share = 1.0 / static_cast<double>(index_->keys());
  for (std::int64_t i = 0; i < d * width; ++i) {
    covariance[i] = static_cast<float>(static_cast<double>(covariance[i]) * factor);
  }
  for (std::int64_t i = 0; i < d * layout_.padded_value_dim; ++i) {
    cross[i] = static_cast<float>(static_cast<double>(cross[i]) * share);
  }
  if (!(trace > 0.0) || !AllFinite(covariance, d * width)) {
    std::fill_n(covariance, d * width, 0.0F);
    for (std::int64_t c = 0; c < d; ++c) covariance[c * width + c] = 1.0F;
  }
  if (!AllFinite(cross, d * layout_.padded_value_dim)) {
    std::fill_n(cross, d * layout_.padded_value_dim, 0.0F);
  }
  for (std::int64_t i = 0; i < d * layout_.padded_value_dim; ++i) {
    cross_square_ += static_cast<double>(cross[i]) * static_cast<double>(cross[i]);
  }
}

// <Cov of the leaf, G> / <G, G>, the best fit of a multiple of G.
void HeadBuild::Slope(std::int64_t leaf, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t d = layout_.key_dim;
  const std::int64_t width = index_->padded_key_dim();
  const std::int64_t columns = layout_.padded_value_dim;
  float* keys = scratch.Take(kBlockTokens * width);
  float* values = scratch.Take(kBlockTokens * columns);
  float* followed = scratch.Take(kBlockTokens * columns);
  CentreLeaf(*index_, leaf, keys, values);
  GemmNN(kBlockTokens, columns, d, keys, width, index_->cross_covariance(), columns,
         /*accumulate=*/false, followed, columns);
  double product = 0.0;
  for (std::int64_t j = 0; j < index_->LeafKeys(leaf); ++j) {
    product += static_cast<double>(Dot(followed + j * columns, values + j * columns, columns));
  }
  product /= static_cast<double>(index_->LeafKeys(leaf));
  const double slope = product / cross_square_;
  index_->stat(5)[leaf] = std::isfinite(slope) ? static_cast<float>(slope) : 0.0F;
}

float HeadBuild::Spread() const {
  const auto n = static_cast<double>(index_->keys());
  double square = value_squares_ / n;
  for (const double sum : value_sum_) square -= sum / n * (sum / n);
  return static_cast<float>(std::sqrt(std::max(square, 0.0)));
}

void HeadBuild::Step(Scratch& scratch) {
  switch (stage_) {
    case Stage::kGather: {
      Gather(scratch);
      const bool fits = MaxAbs(keys_.data(), index_->keys() * layout_.key_dim) <= kMostComponent;
      const auto keys = static_cast<double>(index_->keys());
      std::fill_n(index_->places_.data(), index_->tokens(), -1);
      Stage next = fits ? Stage::kBisect : Stage::kLeaves;
      if (index_->keys() == 0) next = Stage::kDone;
      if (next == Stage::kBisect) {
        bisection_.emplace(KeyRows{keys_.data(), index_->keys(), layout_.key_dim}, order_);
      }
      Advance(keys * kGatherCost, 1, next);
      return;
    }
    case Stage::kBisect: {
      bisection_->Step();
      const double levels = std::log2(static_cast<double>(index_->leaves()) + 1.0);
      Advance(static_cast<double>(index_->keys()) * kBisectCost * levels, bisection_->steps(),
              Stage::kReassign);
      return;
    }
    case Stage::kReassign: {
      bisection_.reset();
      Reassign(scratch);
      const std::int64_t groups = (index_->keys() + kGroupKeys - 1) / kGroupKeys;
      const auto group = static_cast<double>(std::min(index_->keys(), kGroupKeys) / kBlockTokens);
      Advance(static_cast<double>(kReassignments * index_->keys()) * kReassignCost * group,
              kReassignments * groups, Stage::kLeaves);
      return;
    }
    case Stage::kLeaves:
      WriteLeaf(step_, scratch);
      Advance(static_cast<double>(index_->keys()) * kLeafCost, index_->leaves(),
              index_->has_metric() ? Stage::kMetric : Stage::kCalibrate);
      return;
    case Stage::kMetric:
      AddToMetric(step_, scratch);
      Advance(static_cast<double>(index_->keys()) * kMetricCost, index_->leaves(), Stage::kSlopes);
      if (stage_ == Stage::kSlopes) FinishMetric();
      return;
    case Stage::kSlopes:
      Slope(step_, scratch);
      Advance(static_cast<double>(index_->keys()) * kSlopeCost, index_->leaves(),
              Stage::kCalibrate);
      return;
    case Stage::kCalibrate:
      if (!calibration_) calibration_.emplace(*index_, scale_, scratch);
      calibration_->ReadLeaf(scratch);
      Advance(static_cast<double>(index_->keys()) * kCalibrateCost, index_->leaves(), Stage::kDone);
      if (done()) index_->errors_ = calibration_->Finish(Spread(), index_->stat(4));
      return;
    case Stage::kDone:
      return;
  }
}

}  // namespace attnd::engine
