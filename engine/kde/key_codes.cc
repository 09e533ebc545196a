#include "engine/kde/key_codes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/block.h"
#include "engine/simd/code_scan.h"

namespace attnd::engine {
namespace {

constexpr float kMaxCode = 127.0F;
// Below this a row is held as zero: its step would be close to where f32 loses digits.
constexpr float kLeastRange = 0x1p-100F;
constexpr float kUnitRoundoff = 0x1p-24F;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t Pairs(std::int64_t key_dim) { return (key_dim + 1) / 2; }

// A float that is at least `x`, a sum of squares' root that was rounded a few times.
float RoundUpToFloat(double x) {
  const auto rounded = static_cast<float>(x * (1 + 0x1p-20));
  return std::isfinite(rounded) ? std::nextafter(rounded, kInfinity) : kInfinity;
}

}  // namespace

CodedKeys::CodedKeys(std::int64_t key_dim, std::int64_t blocks)
    : key_dim_(key_dim),
      pairs_(Pairs(key_dim)),
      codes_(blocks * pairs_ * 2 * kBlockTokens),
      factors_(blocks * 2 * kBlockTokens),
      norms_(static_cast<std::size_t>(blocks)) {}

void CodedKeys::Encode(std::int64_t index, const BlockView<float>& block, const float* centre) {
  std::int8_t* codes = codes_.data() + index * pairs_ * 2 * kBlockTokens;
  float* steps = factors_.data() + index * 2 * kBlockTokens;
  float* errors = steps + kBlockTokens;
  std::fill_n(codes, pairs_ * 2 * kBlockTokens, std::int8_t{0});
  std::fill_n(steps, 2 * kBlockTokens, 0.0F);
  double centre_square = 0;
  for (std::int64_t i = 0; centre != nullptr && i < key_dim_; ++i) {
    centre_square += static_cast<double>(centre[i]) * static_cast<double>(centre[i]);
  }
  double max_error = 0;
  double max_code = 0;
  double max_key = centre_square;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    if ((block.valid >> j & 1U) == 0) continue;
    float range = 0;
    for (std::int64_t i = 0; i < key_dim_; ++i) {
      const float offset = centre == nullptr ? 0.0F : centre[i];
      range = std::max(range, std::abs(block.keys_t[i * kBlockTokens + j] - offset));
    }
    const bool held = range >= kLeastRange && range <= std::numeric_limits<float>::max() / kMaxCode;
    const float step = held ? range / kMaxCode : 0.0F;
    double error = 0;
    double code_norm = 0;
    double key_norm = 0;
    for (std::int64_t i = 0; i < key_dim_; ++i) {
      const float key = block.keys_t[i * kBlockTokens + j];
      const float offset = centre == nullptr ? 0.0F : centre[i];
      const float code =
          held ? std::clamp(std::nearbyint((key - offset) / step), -kMaxCode, kMaxCode) : 0.0F;
      codes[(i / 2 * kBlockTokens + j) * 2 + i % 2] = static_cast<std::int8_t>(code);
      const double part = static_cast<double>(step) * static_cast<double>(code);
      const double rest = static_cast<double>(key) - static_cast<double>(offset) - part;
      error += rest * rest;
      code_norm += part * part;
      key_norm += static_cast<double>(key) * static_cast<double>(key);
    }
    steps[j] = step;
    errors[j] = error == 0 ? 0.0F : RoundUpToFloat(std::sqrt(error));
    max_error = std::max(max_error, error);
    max_code = std::max(max_code, code_norm);
    max_key = std::max(max_key, key_norm);
  }
  norms_[static_cast<std::size_t>(index)] = {
      .centre = centre,
      .max_error = max_error == 0 ? 0.0F : RoundUpToFloat(std::sqrt(max_error)),
      .max_code_norm = RoundUpToFloat(std::sqrt(max_code)),
      .max_norm = RoundUpToFloat(std::sqrt(std::max(max_key, max_code)))};
}

KeyCodes CodedKeys::block(std::int64_t index) const {
  const BlockNorms& norms = norms_[static_cast<std::size_t>(index)];
  const float* steps = factors_.data() + index * 2 * kBlockTokens;
  return {.codes = codes_.data() + index * pairs_ * 2 * kBlockTokens,
          .steps = steps,
          .errors = steps + kBlockTokens,
          .centre = norms.centre,
          .max_error = norms.max_error,
          .max_code_norm = norms.max_code_norm,
          .max_norm = norms.max_norm};
}

std::int64_t CodedKeys::bytes() const {
  return codes_.bytes() + factors_.bytes() +
         static_cast<std::int64_t>(norms_.capacity() * sizeof(BlockNorms));
}

std::int64_t CodedKeys::BlockBytes(std::int64_t key_dim) {
  return kBlockTokens * (2 * Pairs(key_dim) + 2 * static_cast<std::int64_t>(sizeof(float))) +
         static_cast<std::int64_t>(sizeof(BlockNorms));
}

void CodedQuery::Set(const float* query, std::int64_t key_dim) {
  query_ = query;
  key_dim_ = key_dim;
  codes_.assign(static_cast<std::size_t>(2 * Pairs(key_dim)), 0);
  float range = 0;
  for (std::int64_t i = 0; i < key_dim; ++i) range = std::max(range, std::abs(query[i]));
  // So that sums of key_dim products with numbers up to 127 stay below 2^31.
  const auto most = static_cast<float>(
      std::min<std::int64_t>(32767, std::numeric_limits<std::int32_t>::max() / (127 * key_dim)));
  const bool held = range >= kLeastRange && std::isfinite(range);
  step_ = held ? range / most : 0.0F;
  double square = 0;
  double error = 0;
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const float code = held ? std::clamp(std::nearbyint(query[i] / step_), -most, most) : 0.0F;
    codes_[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(code);
    const auto x = static_cast<double>(query[i]);
    const double rest = x - static_cast<double>(step_) * static_cast<double>(code);
    square += x * x;
    error += rest * rest;
  }
  norm_ = RoundUpToFloat(std::sqrt(square));
  error_ = RoundUpToFloat(std::sqrt(error));
  rounding_ = static_cast<float>(2 * key_dim + 16) * kUnitRoundoff * norm_;
}

float CodedQuery::Base(const KeyCodes& block) const {
  return block.centre == nullptr ? 0.0F : DotRows(query_, block.centre, key_dim_);
}

void CodedQuery::Scores(const KeyCodes& block, float* scores) const {
  ScanCodes(codes_.data(), Pairs(key_dim_), block.codes, block.steps, step_, Base(block), scores);
}

void CodedQuery::RefScores(const KeyCodes& block, float* scores) const {
  RefScanCodes(codes_.data(), Pairs(key_dim_), block.codes, block.steps, step_, Base(block),
               scores);
}

ScoreBound CodedQuery::Bound(const KeyCodes& block) const {
  return {norm_, error_ * block.max_code_norm + rounding_ * block.max_norm};
}

}  // namespace attnd::engine
