#include "engine/efficient/key_columns.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// Below, rounding cannot give other steps than 0: half a step is 32 ln 2 = 22.18.
constexpr float kOrdinaryKey = 22.0F;

constexpr float kLargeKey = 0x1p29F;
constexpr double kStepsPerUnit = 1.44269504088896340736 / 64;
constexpr double kUnitsPerStep = 0.69314718055994530942 * 64;

bool RowHas(const std::int32_t* row, const std::int32_t* steps, std::int64_t columns) {
  return std::memcmp(row, steps, static_cast<std::size_t>(columns) * sizeof(*row)) == 0;
}

// Of a number of at most kLargeKey.
inline SplitKey SplitBounded(double key) {
  // Adding and subtracting it rounds to an integer, as nearbyint() does, which is a call.
  constexpr double kRound = 0x1.8p52;
  const double steps = (key * kStepsPerUnit + kRound) - kRound;
  return {static_cast<std::int32_t>(steps), static_cast<float>(key - steps * kUnitsPerStep)};
}

void EncodeRow(const float* key, std::int64_t d, float* mantissas, std::int32_t* steps) {
  const float largest = MaxAbs(key, d);
  for (std::int64_t a = 0; a < d; ++a) {
    const SplitKey split =
        largest <= kLargeKey ? SplitBounded(static_cast<double>(key[a])) : Split(key[a]);
    steps[a] = split.steps;
    mantissas[a] = split.log_mantissa;
  }
  Exp(mantissas, mantissas, d);
}

}  // namespace

SplitKey Split(float key) {
  const float magnitude = std::abs(key);
  if (magnitude <= kLargeKey) return SplitBounded(static_cast<double>(key));
  const std::int32_t steps =
      SplitBounded(static_cast<double>(kLargeKey)).steps +
      2 * (std::bit_cast<std::int32_t>(magnitude) - std::bit_cast<std::int32_t>(kLargeKey));
  return {key < 0 ? -steps : steps, 0.0F};
}

bool EncodeKeyRows(const LinearLayer& layer, const KeyRows& rows, std::int64_t head,
                   float* mantissas, std::int32_t* steps) {
  const std::int64_t d = layer.shape.key_dim;
  const std::int64_t columns = layer.dims.features;
  const float* keys = rows.keys + head * d;
  bool ordinary = true;
  for (std::int64_t i = 0; ordinary && i < rows.count; ++i) {
    const bool masked = (rows.valid >> i & 1) == 0;
    ordinary = masked || MaxAbs(keys + i * layer.shape.key_row(), d) < kOrdinaryKey;
  }
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* key = keys + i * layer.shape.key_row();
    float* row = mantissas + i * columns;
    std::int32_t* row_steps = steps + i * columns;
    const std::int64_t used = (rows.valid >> i & 1) != 0 ? d : 0;
    if (used > 0 && ordinary) {
      Exp(key, row, d);
    } else if (used > 0) {
      EncodeRow(key, d, row, row_steps);
    }
    std::fill(row + used, row + columns, 0.0F);
    if (!ordinary) std::fill(row_steps + used, row_steps + columns, 0);
  }
  return ordinary;
}

bool SameSteps(const EncodedRows& rows, const std::int32_t* base) {
  if (rows.steps == nullptr) return true;
  for (RowMask left = rows.valid; left != 0; left &= left - 1) {
    const std::int32_t* row = rows.steps + std::countr_zero(left) * rows.columns;
    if (base == nullptr) base = row;
    if (!RowHas(row, base, rows.columns)) return false;
  }
  return true;
}

void RaiseSteps(const EncodedRows& rows, std::int32_t* largest) {
  for (std::int64_t a = 0; rows.steps == nullptr && rows.valid != 0 && a < rows.columns; ++a) {
    largest[a] = std::max(largest[a], 0);
  }
  if (rows.steps == nullptr) return;
  for (RowMask left = rows.valid; left != 0; left &= left - 1) {
    const std::int32_t* row = rows.steps + std::countr_zero(left) * rows.columns;
    for (std::int64_t a = 0; a < rows.columns; ++a) largest[a] = std::max(largest[a], row[a]);
  }
}

AlignedRows AlignRows(const EncodedRows& rows, const std::int32_t* base, Scratch& scratch) {
  if (SameSteps(rows, base)) return {rows.mantissas, nullptr};
  float* mantissas = scratch.Take(rows.rows * rows.columns);
  float* factors = scratch.Take(rows.columns);
  // Steps need no working memory of their own if columns are taken a few at a time. The number of
  // columns is a multiple of 16.
  constexpr std::int64_t kGroup = 16;
  for (std::int64_t first = 0; first < rows.columns; first += kGroup) {
    std::array<std::int32_t, kGroup> largest;
    largest.fill(kNoSteps);
    if (base != nullptr) std::copy_n(base + first, kGroup, largest.begin());
    for (RowMask left = rows.valid; left != 0; left &= left - 1) {
      const std::int32_t* row = rows.steps + std::countr_zero(left) * rows.columns + first;
      for (std::size_t a = 0; a < kGroup; ++a) largest[a] = std::max(largest[a], row[a]);
    }
    for (std::size_t a = 0; base != nullptr && a < kGroup; ++a) {
      (factors + first)[a] = StepFactor((base + first)[a], largest[a]);
    }
    // Masked rows are zeros, and so stay.
    for (std::int64_t i = 0; i < rows.rows; ++i) {
      const float* from = rows.mantissas + i * rows.columns + first;
      const std::int32_t* steps = rows.steps + i * rows.columns + first;
      float* to = mantissas + i * rows.columns + first;
      for (std::size_t a = 0; a < kGroup; ++a) to[a] = from[a] * StepFactor(steps[a], largest[a]);
    }
  }
  return {mantissas, base == nullptr ? nullptr : factors};
}

}  // namespace attnd::engine
