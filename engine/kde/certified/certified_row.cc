#include "engine/kde/certified/certified_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/block.h"
#include "engine/kde/certified/residual_sample.h"
#include "engine/simd/code_scan.h"
#include "engine/simd/maps.h"
#include "engine/simd/one_query.h"
#include "engine/simd/softmax.h"

namespace attnd::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// What f32 sums of 64 weights may be off, relatively.
constexpr double kSumRounding = 0x1p-20;
constexpr std::int64_t kExactBytesPerQuantum = 4 << 20;
constexpr std::int64_t kGatheredLinesPerQuantum = 1 << 16;  // a cache line for every component
constexpr std::int64_t kWeighBlocksPerQuantum = 2048;
constexpr std::int64_t kControlBytesPerQuantum = 8 << 20;

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

template <typename T>
void Grow(AlignedBuffer<T>& buffer, std::int64_t count) {
  if (buffer.size() < count) buffer = AlignedBuffer<T>::Uninitialized(count);
}

}  // namespace

void CertifiedRow::Reset(const CertifiedRowShape& shape, const CertifiedOptions& options,
                         std::span<const CertifiedBlock> blocks, const float* query,
                         std::uint64_t seed) {
  shape_ = shape;
  options_ = options;
  blocks_ = blocks;
  query_ = query;
  seed_ = seed;
  stage_ = Stage::kScan;
  next_ = 0;
  coded_query_.Set(query, shape.key_dim);
  heavy_.Reset(options.heavy_keys, options.heavy_margin, options.most_heavy_keys);
  gathered_.Reset(shape.key_dim, shape.padded_value_dim);
  best_scan_ = -kInfinity;
  const auto count = static_cast<std::int64_t>(blocks.size());
  Grow(scores_, count * kBlockTokens);
  max_etas_.assign(blocks.size(), -1.0F);
  block_weights_.assign(blocks.size(), 0.0F);
  sums_.assign(blocks.size(), WeightSums{});
  draws_.reserve(Index(2 * options.pairs));
  large_.clear();
  large_.reserve(Index(options.most_heavy_keys));
  reference_ = -kInfinity;
  total_ = 0;
  squares_ = 0;
  max_eta_ = 0;
  sum_x_ = 0;
  max_ = -kInfinity;
  sum_ = 0;
  Grow(rows_, kBlockTokens * shape.padded_value_dim);
  std::fill_n(rows_.data(), kBlockTokens * shape.padded_value_dim, 0.0F);
  Grow(exact_, shape.padded_value_dim);
  Grow(residual_, shape.padded_value_dim);
  std::fill_n(exact_.data(), shape.padded_value_dim, 0.0F);
  std::fill_n(residual_.data(), shape.padded_value_dim, 0.0F);
  centre_.assign(Index(shape.value_dim), 0.0F);
  output_.assign(Index(shape.value_dim), 0.0F);
  std::vector<double> moments = std::move(answer_.moments.value_ratio);
  moments.assign(options.pairs > 0 ? Index(shape.value_dim) : 0, 0.0);
  answer_ = {};
  answer_.moments.value_ratio = std::move(moments);
}

bool CertifiedRow::Run() {
  if (stage_ == Stage::kDone) return true;
  if (!RunStage()) return false;
  next_ = 0;
  stage_ = static_cast<Stage>(static_cast<int>(stage_) + 1);
  return stage_ == Stage::kDone;
}

// True when the stage is over.
bool CertifiedRow::RunStage() {
  switch (stage_) {
    case Stage::kScan:
      return Scan();
    case Stage::kHeavy:
      return AttendKeys(chosen_);
    case Stage::kWeigh:
      return Weigh();
    case Stage::kTakeLarge:
      return TakeLarge();
    case Stage::kLarge:
      return AttendKeys(large_);
    case Stage::kBracket:
      return Bracket();
    case Stage::kDraw:
      Draw();
      return true;
    case Stage::kControls:
      return AddControls();
    case Stage::kSample:
      return AttendSample();
    case Stage::kConclude:
      Conclude();
      return true;
    case Stage::kDone:
      break;
  }
  return true;
}

bool CertifiedRow::Scan() {
  const auto count = static_cast<std::int64_t>(blocks_.size());
  std::int64_t bytes = 0;
  for (; next_ < count; ++next_) {
    if (bytes >= kExactBytesPerQuantum) return false;
    const CertifiedBlock& block = at(next_);
    if (block.block.valid == 0) continue;
    if (block.codes.codes != nullptr) {
      const float max_eta = coded_query_.Bound(block.codes).Of(block.codes.max_error);
      if (max_eta <= options_.max_eta) max_etas_[Index(next_)] = max_eta;
    }
    if (!coded(next_)) {
      AttendExactly(block.block);
      bytes += kBlockTokens * (shape_.key_dim + shape_.padded_value_dim) *
               static_cast<std::int64_t>(sizeof(float));
      continue;
    }
    float* scores = scores_.data() + next_ * kBlockTokens;
    coded_query_.Scores(block.codes, scores);
    if (block.block.valid != FirstRows(kBlockTokens)) {
      for (std::int64_t j = 0; j < kBlockTokens; ++j) {
        if ((block.block.valid >> j & 1U) == 0) scores[j] = -kInfinity;
      }
    }
    best_scan_ = std::max(best_scan_, MaxScore(scores));
    heavy_.Offer(next_, scores);
    answer_.keys_scanned += std::popcount(block.block.valid);
    bytes += kBlockTokens * (shape_.key_dim + 8);
  }
  chosen_ = heavy_.Choose();
  for (const HeavyKey& heavy : chosen_) scores_.data()[heavy.key] = -kInfinity;
  return true;
}

void CertifiedRow::AttendExactly(const BlockView<float>& block) {
  alignas(64) std::array<float, kBlockTokens> scores;
  float correction = 1;
  ScoresOneQuery(query_, shape_.key_dim, block.keys_t, scores.data(), nullptr);
  OnlineSoftmaxBlock(scores.data(), 1, &block.valid, 0, &max_, &sum_, &correction);
  RescaleRows(exact_.data(), 1, shape_.padded_value_dim, &correction);
  WeightedSumOneQuery(scores.data(), block.values, shape_.padded_value_dim, exact_.data(), nullptr);
  answer_.keys_evaluated += std::popcount(block.valid);
}

std::int64_t CertifiedRow::GathersPerQuantum() const {
  return std::max(kGatheredLinesPerQuantum / (kBlockTokens * shape_.key_dim), std::int64_t{1});
}

bool CertifiedRow::AttendKeys(std::span<const HeavyKey> keys) {
  const auto count = static_cast<std::int64_t>(keys.size());
  for (std::int64_t gathers = 0; next_ < count; ++gathers) {
    if (gathers == GathersPerQuantum()) return false;
    gathered_.Clear();
    for (; next_ < count && gathered_.count() < kBlockTokens; ++next_) {
      const std::int64_t key = keys[Index(next_)].key;
      if (next_ + 1 < count) Prefetch(keys[Index(next_ + 1)].key);
      gathered_.Add(at(key / kBlockTokens).block, key % kBlockTokens);
    }
    AttendExactly(gathered_.block());
  }
  return true;
}

// Weights are relative to the largest score of all, so that none is above exp(eta).
bool CertifiedRow::Weigh() {
  const auto count = static_cast<std::int64_t>(blocks_.size());
  if (next_ == 0) reference_ = std::max(max_, best_scan_);
  const std::int64_t end = std::min(next_ + kWeighBlocksPerQuantum, count);
  for (; next_ < end; ++next_) {
    if (!coded(next_)) continue;
    sums_[Index(next_)] = WeighScores(scores_.data() + next_ * kBlockTokens, reference_,
                                      at(next_).codes.errors, Sizes(next_));
    total_ += static_cast<double>(sums_[Index(next_)].sum);
    squares_ += static_cast<double>(sums_[Index(next_)].squares);
  }
  return next_ == count;
}

const float* CertifiedRow::Sizes(std::int64_t block) const {
  alignas(64) static constexpr std::array<float, kBlockTokens> kOnes = [] {
    std::array<float, kBlockTokens> ones = {};
    ones.fill(1.0F);
    return ones;
  }();
  const float* steps = at(block).controls.steps;
  return steps == nullptr ? kOnes.data() : steps;
}

// Takes from the residual what a sample would misjudge, and what it would draw anyway.
bool CertifiedRow::TakeLarge() {
  if (options_.pairs == 0) return true;
  const auto count = static_cast<std::int64_t>(blocks_.size());
  const auto limit = static_cast<float>(squares_ / static_cast<double>(2 * options_.pairs));
  const std::int64_t end = std::min(next_ + kWeighBlocksPerQuantum, count);
  for (; next_ < end; ++next_) {
    WeightSums& sums = sums_[Index(next_)];
    if (!(sums.squares > limit)) continue;
    float* weights = scores_.data() + next_ * kBlockTokens;
    std::uint64_t large = SquaresAbove(weights, Sizes(next_), limit);
    if (large == 0) continue;
    for (; large != 0 && std::ssize(large_) < options_.most_heavy_keys; large &= large - 1) {
      const int j = std::countr_zero(large);
      large_.push_back({next_ * kBlockTokens + j, 0.0F});
      weights[j] = 0;
    }
    sums = SumWeights(weights, at(next_).codes.errors, Sizes(next_));
  }
  return next_ == count;
}

// What is certain of the residual, and its weight now that it is complete.
bool CertifiedRow::Bracket() {
  const auto count = static_cast<std::int64_t>(blocks_.size());
  ErrorMoments& moments = answer_.moments;
  if (next_ == 0) total_ = 0;
  const std::int64_t end = std::min(next_ + kWeighBlocksPerQuantum, count);
  for (; next_ < end; ++next_) {
    if (!coded(next_)) continue;
    const auto max_eta = static_cast<double>(max_etas_[Index(next_)]);
    const double growth = std::exp(max_eta);
    // What is below the least f32 weighs nothing here, but is counted in the upper bound.
    moments.residual_high += kBlockTokens * static_cast<double>(0x1p-126F) * growth;
    const WeightSums& sums = sums_[Index(next_)];
    if (sums.sum == 0) continue;
    const auto weight = static_cast<double>(sums.sum);
    const ScoreBound bound = coded_query_.Bound(at(next_).codes);
    const double eta = std::min(static_cast<double>(bound.Of(sums.errors / sums.sum)), max_eta);
    // By Jensen the lower, by the chord of exp over [0, max_eta] the upper one.
    moments.residual_low += weight * std::exp(-eta) * (1 - kSumRounding);
    const double slope = max_eta > 0 ? (growth - 1) / max_eta : 0;
    moments.residual_high += weight * (1 + eta * slope) * (1 + kSumRounding);
    block_weights_[Index(next_)] = sums.sum;
    total_ += weight;
    max_eta_ = std::max(max_eta_, max_eta);
  }
  return next_ == count;
}

void CertifiedRow::Draw() {
  draws_.clear();
  if (total_ == 0 || options_.pairs == 0) return;
  DrawPairs({.weights = scores_.data(),
             .block_weights = block_weights_.data(),
             .blocks = static_cast<std::int64_t>(blocks_.size()),
             .total = total_},
            options_.pairs, seed_, draws_);
}

bool CertifiedRow::AttendSample() {
  const auto count = static_cast<std::int64_t>(draws_.size());
  for (std::int64_t gathers = 0; next_ < count; ++gathers) {
    if (gathers == GathersPerQuantum()) return false;
    const std::int64_t first = next_;
    gathered_.Clear();
    for (; next_ < count && gathered_.count() < kBlockTokens; ++next_) {
      const std::int64_t key = draws_[Index(next_)];
      // Draws ascend.
      if (next_ == 0 || draws_[Index(next_ - 1)] != key) ++answer_.keys_evaluated;
      if (next_ + 1 < count) Prefetch(draws_[Index(next_ + 1)]);
      gathered_.Add(at(key / kBlockTokens).block, key % kBlockTokens);
    }
    SampleGathered(first);
  }
  return true;
}

ValueCodes CertifiedRow::Controls(std::int64_t block) const {
  ValueCodes controls = at(block).controls;
  const double least = kLeastShare * total_ / static_cast<double>(blocks_.size());
  if (static_cast<double>(block_weights_[Index(block)]) < least) controls.codes = nullptr;
  return controls;
}

// Adds the draws that were gathered, from number `first` on.
void CertifiedRow::SampleGathered(std::int64_t first) {
  const std::int64_t columns = shape_.padded_value_dim;
  const BlockView<float> block = gathered_.block();
  alignas(64) std::array<float, kBlockTokens> ratios;
  ScoresOneQuery(query_, shape_.key_dim, block.keys_t, ratios.data(), nullptr);
  for (float& score : ratios) score -= reference_;
  Exp(ratios.data(), ratios.data(), kBlockTokens);
  float* rows = rows_.data();  // x v - c
  for (std::int64_t s = 0; s < gathered_.count(); ++s) {
    const std::int64_t key = draws_[Index(first + s)];
    const float ratio = ratios[Index(s)] / scores_.data()[key];
    ratios[Index(s)] = ratio;
    sum_x_ += static_cast<double>(ratio);
    float* row = rows + s * columns;
    const std::int64_t b = key / kBlockTokens;
    const ValueCodes controls = Controls(b);
    WeightedCodes(controls, scores_.data() + b * kBlockTokens)
        .Control(key % kBlockTokens, columns, row);
    const float* value = block.values + s * columns;
    for (std::int64_t c = 0; c < columns; ++c) row[c] = ratio * value[c] - row[c];
  }
  const double unit = total_ / static_cast<double>(draws_.size());
  alignas(64) std::array<float, kBlockTokens> weights = {};
  std::fill_n(weights.begin(), gathered_.count(), static_cast<float>(unit));
  WeightedSumOneQuery(weights.data(), rows, columns, residual_.data(), nullptr);
  for (std::int64_t s = 0; s < gathered_.count(); s += 2) {
    const float* row = rows + s * columns;
    answer_.moments.AddPair(unit, static_cast<double>(ratios[Index(s)]),
                            static_cast<double>(ratios[Index(s + 1)]), row, row + columns,
                            centre_.data(), shape_.value_dim);
  }
}

// The known sum of the residual's controls.
bool CertifiedRow::AddControls() {
  const auto count = static_cast<std::int64_t>(blocks_.size());
  const std::int64_t columns = shape_.padded_value_dim;
  const std::int64_t end = std::min(next_ + kControlBytesPerQuantum / (64 * columns) + 1, count);
  for (; next_ < end; ++next_) {
    const float weight = block_weights_[Index(next_)];
    if (weight == 0) continue;
    const ValueCodes controls = Controls(next_);
    WeightedCodes(controls, scores_.data() + next_ * kBlockTokens).AddTo(columns, residual_.data());
    if (controls.centre == nullptr) continue;
    for (std::int64_t c = 0; c < columns; ++c) residual_.data()[c] += weight * controls.centre[c];
  }
  if (next_ < count) return false;
  // The answer without a sample.
  const double exact = std::exp(static_cast<double>(max_) - static_cast<double>(reference_));
  const double sum = static_cast<double>(sum_) * exact + total_;
  for (std::int64_t c = 0; c < shape_.value_dim; ++c) {
    centre_[Index(c)] = static_cast<float>(
        (static_cast<double>(exact_.data()[c]) * exact + static_cast<double>(residual_.data()[c])) /
        sum);
  }
  return true;
}

void CertifiedRow::Conclude() {
  ErrorMoments& moments = answer_.moments;
  // Keys taken from the residual may be above what it is relative to.
  const float reference = std::max(max_, reference_);
  answer_.log_normalizer = -std::numeric_limits<double>::infinity();
  answer_.log_normalizers = {answer_.log_normalizer, answer_.log_normalizer};
  if (reference == -kInfinity) {  // no key, or one whose score left f32
    answer_.flag = sum_ == 0.0F ? RowFlag::kEmpty : RowFlag::kOverflow;
    return;
  }
  const double factor = std::exp(static_cast<double>(max_) - static_cast<double>(reference));
  const double rest = std::exp(static_cast<double>(reference_) - static_cast<double>(reference));
  const auto draws = static_cast<double>(draws_.size());
  moments.reference = static_cast<double>(reference_);
  moments.residual = draws_.empty() ? total_ : total_ * sum_x_ / draws;
  moments.pairs = static_cast<std::int64_t>(draws_.size()) / 2;
  if (moments.pairs > 0) {
    moments.range = total_ / draws * (std::exp(max_eta_) - std::exp(-max_eta_));
  }
  moments.ScaleTo(static_cast<double>(reference));
  moments.exact = static_cast<double>(sum_) * factor;
  const double total = moments.total();
  for (std::int64_t c = 0; c < shape_.value_dim; ++c) {
    const double sum = static_cast<double>(exact_.data()[c]) * factor +
                       static_cast<double>(residual_.data()[c]) * rest;
    output_[Index(c)] = static_cast<float>(sum / total) + 0.0F;  // no -0
  }
  if (!std::isfinite(total) || !AllFinite(output_.data(), shape_.value_dim)) {
    answer_.flag = RowFlag::kOverflow;
    answer_.log_normalizer = std::numeric_limits<double>::quiet_NaN();
    answer_.log_normalizers = {answer_.log_normalizer, answer_.log_normalizer};
    std::fill(output_.begin(), output_.end(), 0.0F);
    return;
  }
  answer_.flag = RowFlag::kOk;
  answer_.log_normalizer = moments.reference + std::log(total);
  answer_.log_normalizers = LogNormalizerInterval(moments);
  answer_.exact_mass = moments.exact / total;
  answer_.standard_error = StandardError(moments, output_.data(), shape_.value_dim);
  answer_.error = ErrorBar(moments, output_.data(), shape_.value_dim);
  if (total_ > 0 && draws_.empty()) answer_.error = std::numeric_limits<double>::infinity();
}

}  // namespace attnd::engine
