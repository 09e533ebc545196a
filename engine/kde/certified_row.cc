#include "engine/kde/certified_row.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/block.h"
#include "engine/kde/residual_sample.h"
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
constexpr std::int64_t kGathersPerQuantum = 4;
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
  total_ = 0;
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
  output_.assign(Index(shape.value_dim), 0.0F);
  std::vector<double> moments = std::move(answer_.moments.value_ratio);
  moments.assign(options.pairs > 0 ? Index(shape.value_dim) : 0, 0.0);
  answer_ = {};
  answer_.moments.value_ratio = std::move(moments);
}

bool CertifiedRow::Run() {
  switch (stage_) {
    case Stage::kScan:
      if (!Scan()) return false;
      chosen_ = heavy_.Choose();
      stage_ = Stage::kHeavy;
      break;
    case Stage::kHeavy:
      if (!AttendHeavy()) return false;
      stage_ = Stage::kWeigh;
      break;
    case Stage::kWeigh:
      if (!Weigh()) return false;
      stage_ = Stage::kDraw;
      break;
    case Stage::kDraw:
      draws_.clear();
      if (total_ > 0 && options_.pairs > 0) {
        DrawPairs({.weights = scores_.data(),
                   .block_weights = block_weights_.data(),
                   .blocks = static_cast<std::int64_t>(blocks_.size()),
                   .total = total_},
                  options_.pairs, seed_, draws_);
      }
      stage_ = Stage::kSample;
      break;
    case Stage::kSample:
      if (!AttendSample()) return false;
      stage_ = Stage::kControls;
      break;
    case Stage::kControls:
      if (!AddControls()) return false;
      Conclude();
      stage_ = Stage::kDone;
      break;
    case Stage::kDone:
      break;
  }
  next_ = 0;
  return stage_ == Stage::kDone;
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

bool CertifiedRow::AttendHeavy() {
  const auto count = static_cast<std::int64_t>(chosen_.size());
  for (std::int64_t gathers = 0; next_ < count; ++gathers) {
    if (gathers == kGathersPerQuantum) return false;
    gathered_.Clear();
    for (; next_ < count && gathered_.count() < kBlockTokens; ++next_) {
      const std::int64_t key = chosen_[Index(next_)].key;
      gathered_.Add(at(key / kBlockTokens).block, key % kBlockTokens);
      scores_.data()[key] = -kInfinity;
    }
    AttendExactly(gathered_.block());
  }
  return true;
}

// Weights are relative to the largest score of all, so that none is above exp(eta).
bool CertifiedRow::Weigh() {
  const auto count = static_cast<std::int64_t>(blocks_.size());
  ErrorMoments& moments = answer_.moments;
  const float reference = std::max(max_, best_scan_);
  const std::int64_t end = std::min(next_ + kWeighBlocksPerQuantum, count);
  for (; next_ < end; ++next_) {
    if (!coded(next_)) continue;
    const KeyCodes& codes = at(next_).codes;
    const WeightSums sums =
        WeighScores(scores_.data() + next_ * kBlockTokens, reference, codes.errors);
    // What is below the least f32 weighs nothing here, but is counted in the upper bound.
    const auto weight = static_cast<double>(sums.sum);
    const auto max_eta = static_cast<double>(max_etas_[Index(next_)]);
    const double growth = std::exp(max_eta);
    moments.residual_high += kBlockTokens * static_cast<double>(0x1p-126F) * growth;
    if (weight == 0) continue;
    const ScoreBound bound = coded_query_.Bound(codes);
    const double eta = std::min(static_cast<double>(bound.Of(sums.weighted / sums.sum)), max_eta);
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

bool CertifiedRow::AttendSample() {
  const auto count = static_cast<std::int64_t>(draws_.size());
  for (std::int64_t gathers = 0; next_ < count; ++gathers) {
    if (gathers == kGathersPerQuantum) return false;
    const std::int64_t first = next_;
    gathered_.Clear();
    for (; next_ < count && gathered_.count() < kBlockTokens; ++next_) {
      const std::int64_t key = draws_[Index(next_)];
      gathered_.Add(at(key / kBlockTokens).block, key % kBlockTokens);
    }
    SampleGathered(first);
    answer_.keys_evaluated += gathered_.count();
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
  const float reference = std::max(max_, best_scan_);
  alignas(64) std::array<float, kBlockTokens> ratios;
  ScoresOneQuery(query_, shape_.key_dim, block.keys_t, ratios.data(), nullptr);
  for (float& score : ratios) score -= reference;
  Exp(ratios.data(), ratios.data(), kBlockTokens);
  float* rows = rows_.data();  // x v - c
  for (std::int64_t s = 0; s < gathered_.count(); ++s) {
    const std::int64_t key = draws_[Index(first + s)];
    const float ratio = ratios[Index(s)] / scores_.data()[key];
    ratios[Index(s)] = ratio;
    sum_x_ += static_cast<double>(ratio);
    float* row = rows + s * columns;
    DecodeValue(Controls(key / kBlockTokens), key % kBlockTokens, columns, row);
    const float* value = block.values + s * columns;
    for (std::int64_t c = 0; c < columns; ++c) row[c] = ratio * value[c] - row[c];
  }
  const double unit = total_ / static_cast<double>(draws_.size());
  alignas(64) std::array<float, kBlockTokens> weights = {};
  std::fill_n(weights.begin(), gathered_.count(), static_cast<float>(unit));
  WeightedSumOneQuery(weights.data(), rows, columns, residual_.data(), nullptr);
  ErrorMoments& moments = answer_.moments;
  const double factor = unit * unit;
  for (std::int64_t s = 0; s < gathered_.count(); s += 2) {
    const auto b = static_cast<double>(ratios[Index(s)] - ratios[Index(s + 1)]);
    const float* row = rows + s * columns;
    double square = 0;
    for (std::int64_t c = 0; c < shape_.value_dim; ++c) {
      const auto a = static_cast<double>(row[c] - row[columns + c]);
      square += a * a;
      moments.value_ratio[Index(c)] += a * b * factor;
    }
    moments.value_square += square * factor;
    moments.ratio_square += b * b * factor;
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
    AddWeightedCodes(controls, scores_.data() + next_ * kBlockTokens, columns, residual_.data());
    if (controls.centre == nullptr) continue;
    for (std::int64_t c = 0; c < columns; ++c) residual_.data()[c] += weight * controls.centre[c];
  }
  return next_ == count;
}

void CertifiedRow::Conclude() {
  ErrorMoments& moments = answer_.moments;
  const float reference = std::max(max_, best_scan_);
  answer_.log_normalizer = -std::numeric_limits<double>::infinity();
  answer_.log_normalizers = {answer_.log_normalizer, answer_.log_normalizer};
  if (reference == -kInfinity) {  // no key, or one whose score left f32
    answer_.flag = sum_ == 0.0F ? RowFlag::kEmpty : RowFlag::kOverflow;
    return;
  }
  const double factor = std::exp(static_cast<double>(max_) - static_cast<double>(reference));
  const auto draws = static_cast<double>(draws_.size());
  moments.reference = static_cast<double>(reference);
  moments.exact = static_cast<double>(sum_) * factor;
  moments.residual = draws_.empty() ? total_ : total_ * sum_x_ / draws;
  moments.pairs = static_cast<std::int64_t>(draws_.size()) / 2;
  if (moments.pairs > 0) {
    moments.range = total_ / draws * (std::exp(max_eta_) - std::exp(-max_eta_));
  }
  const double total = moments.total();
  for (std::int64_t c = 0; c < shape_.value_dim; ++c) {
    const double sum =
        static_cast<double>(exact_.data()[c]) * factor + static_cast<double>(residual_.data()[c]);
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
