#include "engine/kde/certified/key_codes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/block.h"
#include "engine/kde/certified/code_step.h"
#include "engine/simd/code_scan.h"

namespace attnd::engine {
namespace {

constexpr float kUnitRoundoff = 0x1p-24F;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t Pairs(std::int64_t key_dim) { return (key_dim + 1) / 2; }

// A float that is at least the root of a sum of squares, which was rounded a few times.
float RoundUpRoot(double square) {
  if (square == 0) return 0.0F;
  const auto rounded = static_cast<float>(std::sqrt(square) * (1 + 0x1p-20));
  return std::isfinite(rounded) ? std::nextafter(rounded, kInfinity) : kInfinity;
}

}  // namespace

CodedKeys::CodedKeys(std::int64_t key_dim, std::int64_t blocks)
    : key_dim_(key_dim),
      pairs_(Pairs(key_dim)),
      codes_(blocks * pairs_ * 2 * kBlockTokens),
      factors_(blocks * 2 * kBlockTokens),
      norms_(static_cast<std::size_t>(blocks)) {}

// Component by component for all keys, as they lie.
void CodedKeys::Encode(std::int64_t index, const BlockView<float>& block, const float* centre) {
  std::int8_t* codes = codes_.data() + index * pairs_ * 2 * kBlockTokens;
  float* steps = factors_.data() + index * 2 * kBlockTokens;
  float* errors = steps + kBlockTokens;
  std::array<float, kBlockTokens> ranges = {};
  std::array<float, kBlockTokens> inverses = {};
  std::array<double, kBlockTokens> rest_squares = {};
  std::array<double, kBlockTokens> code_squares = {};
  std::array<double, kBlockTokens> key_squares = {};
  const auto offset = [&](std::int64_t i) { return centre == nullptr ? 0.0F : centre[i]; };
  for (std::int64_t i = 0; i < key_dim_; ++i) {
    const float* keys = block.keys_t + i * kBlockTokens;
    const float from = offset(i);
    for (std::size_t j = 0; j < ranges.size(); ++j) {
      ranges[j] = std::max(ranges[j], std::abs(keys[j] - from));
    }
  }
  for (std::size_t j = 0; j < ranges.size(); ++j) {
    const bool valid = (block.valid >> j & 1U) != 0;
    steps[j] = valid ? CodeStep(ranges[j], kMaxKeyCode) : 0.0F;
    inverses[j] = steps[j] > 0 ? 1 / steps[j] : 0.0F;
  }
  double centre_square = 0;
  for (std::int64_t i = 0; i < key_dim_; ++i) {
    const float* keys = block.keys_t + i * kBlockTokens;
    const float from = offset(i);
    centre_square += static_cast<double>(from) * static_cast<double>(from);
    std::int8_t* row = codes + i / 2 * 2 * kBlockTokens + i % 2;
    for (std::size_t j = 0; j < ranges.size(); ++j) {
      const float code = steps[j] > 0 ? ToCode((keys[j] - from) * inverses[j], kMaxKeyCode) : 0.0F;
      row[2 * j] = static_cast<std::int8_t>(code);
      const auto key = static_cast<double>(keys[j]);
      const double part = static_cast<double>(steps[j]) * static_cast<double>(code);
      const double rest = key - static_cast<double>(from) - part;
      rest_squares[j] += rest * rest;
      code_squares[j] += part * part;
      key_squares[j] += key * key;
    }
  }
  double max_rest = 0;
  double max_code = 0;
  double max_key = centre_square;
  for (std::size_t j = 0; j < ranges.size(); ++j) {
    errors[j] = 0;
    if ((block.valid >> j & 1U) == 0) continue;
    errors[j] = RoundUpRoot(rest_squares[j]);
    max_rest = std::max(max_rest, rest_squares[j]);
    max_code = std::max(max_code, code_squares[j]);
    max_key = std::max(max_key, key_squares[j]);
  }
  norms_[static_cast<std::size_t>(index)] = {.centre = centre,
                                             .max_error = RoundUpRoot(max_rest),
                                             .max_code_norm = RoundUpRoot(max_code),
                                             .max_norm = RoundUpRoot(std::max(max_key, max_code))};
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
  step_ = CodeStep(range, most);
  const float inverse = step_ > 0 ? 1 / step_ : 0.0F;
  double square = 0;
  double error = 0;
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const float code = step_ > 0 ? ToCode(query[i] * inverse, most) : 0.0F;
    codes_[static_cast<std::size_t>(i)] = static_cast<std::int16_t>(code);
    const auto x = static_cast<double>(query[i]);
    const double rest = x - static_cast<double>(step_) * static_cast<double>(code);
    square += x * x;
    error += rest * rest;
  }
  norm_ = RoundUpRoot(square);
  error_ = RoundUpRoot(error);
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
