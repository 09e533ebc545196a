#include "engine/token_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/simd/convert.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// A copy of elements [first, first + count) as f32.
float* CopyAsF32(const ConstElements& elements, std::int64_t first, std::int64_t count,
                 Scratch& scratch) {
  float* copy = scratch.Take(count);
  if (elements.type == DataType::kF32) {
    std::memcpy(copy, static_cast<const float*>(elements.data) + first,
                static_cast<std::size_t>(count) * sizeof(float));
  } else if (elements.type == DataType::kF16) {
    F16ToF32(static_cast<const std::uint16_t*>(elements.data) + first, copy, count);
  } else {
    Bf16ToF32(static_cast<const std::uint16_t*>(elements.data) + first, copy, count);
  }
  return copy;
}

absl::Status CheckFinite(const float* rows, std::int64_t row, std::int64_t first,
                         std::int64_t count, const char* name) {
  if (AllFinite(rows, count * row)) return absl::OkStatus();
  std::int64_t i = 0;
  while (AllFinite(rows + i * row, row)) ++i;
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": token ", first + i, " of the message holds a NaN, an infinity, or a ",
                   "number that leaves the range of the storage type"));
}

// Rows of one tensor of the batch, `row` floats per token; in place where nothing has to change.
absl::StatusOr<const float*> StoredTensor(const Engine& engine, const ConstElements& elements,
                                          const char* name, std::int64_t row, std::int64_t first,
                                          std::int64_t count, RowMask valid, Scratch& scratch) {
  const bool masked = valid != FirstRows(count);
  if (elements.type == DataType::kF32 && !masked && !engine.rounds_storage()) {
    const float* rows = static_cast<const float*>(elements.data) + first * row;
    absl::Status finite = CheckFinite(rows, row, first, count, name);
    if (!finite.ok()) return finite;
    return rows;
  }
  float* rows = CopyAsF32(elements, first * row, count * row, scratch);
  if (engine.rounds_storage()) engine.RoundToStorage(rows, count * row);
  absl::Status finite = CheckFinite(rows, row, first, count, name);
  if (!finite.ok()) return finite;
  for (std::int64_t i = 0; masked && i < count; ++i) {
    if ((valid >> i & 1) == 0) {
      std::memset(rows + i * row, 0, static_cast<std::size_t>(row) * sizeof(float));
    }
  }
  return rows;
}

// What one of a token's gates may be.
struct GateRange {
  const char* name;
  std::int64_t row;  // numbers per token
  float least;
  float most;
};

// Rows of a gate as f32, never rounded to a storage type: they are few, and products of many.
absl::StatusOr<const float*> StoredGates(const ConstElements& elements, const GateRange& range,
                                         std::int64_t first, std::int64_t count, RowMask valid,
                                         Scratch& scratch) {
  float* rows = CopyAsF32(elements, first * range.row, count * range.row, scratch);
  for (std::int64_t i = 0; i < count * range.row; ++i) {
    if (rows[i] >= range.least && rows[i] <= range.most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(range.name, ": token ", first + i / range.row, " of the message holds ",
                     rows[i], "; each must be ", range.least, " to ", range.most));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    if ((valid >> i & 1) == 0) std::fill_n(rows + i * range.row, range.row, 0.0F);
  }
  return rows;
}

}  // namespace

absl::StatusOr<TokenRows> StoredRows(const Engine& engine, const TokenBatch& batch,
                                     std::int64_t first, std::int64_t count, Scratch& scratch) {
  TokenRows rows;
  rows.count = count;
  rows.valid = FirstRows(count);
  if (batch.mask != nullptr) {
    rows.valid = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      if (batch.mask[first + i] != 0) rows.valid |= RowMask{1} << i;
    }
  }
  const LayerShape& shape = engine.shape();
  absl::StatusOr<const float*> keys =
      StoredTensor(engine, batch.keys, "keys", shape.key_row(), first, count, rows.valid, scratch);
  if (!keys.ok()) return keys.status();
  absl::StatusOr<const float*> values = StoredTensor(
      engine, batch.values, "values", shape.value_row(), first, count, rows.valid, scratch);
  if (!values.ok()) return values.status();
  rows.keys = *keys;
  rows.values = *values;
  const TailLayout layout = engine.tail_layout();
  if (layout.log_decays > 0) {
    absl::StatusOr<const float*> decays =
        StoredGates(batch.log_decays, {"log_decays", layout.log_decays, -kMaxLogDecay, 0.0F}, first,
                    count, rows.valid, scratch);
    if (!decays.ok()) return decays.status();
    rows.log_decays = *decays;
  }
  if (layout.rates > 0) {
    absl::StatusOr<const float*> rates = StoredGates(
        batch.rates, {"rates", layout.rates, 0.0F, kMaxRate}, first, count, rows.valid, scratch);
    if (!rates.ok()) return rates.status();
    rows.rates = *rates;
  }
  return rows;
}

void TokenDigester::Update(const Engine& engine, const TokenRows& rows) {
  const auto bytes = [&](std::int64_t row) {
    return rows.count * row * static_cast<std::int64_t>(sizeof(float));
  };
  keys_.Update(rows.keys, bytes(engine.shape().key_row()));
  values_.Update(rows.values, bytes(engine.shape().value_row()));
  const TailLayout layout = engine.tail_layout();
  if (layout.log_decays > 0) log_decays_.Update(rows.log_decays, bytes(layout.log_decays));
  if (layout.rates > 0) rates_.Update(rows.rates, bytes(layout.rates));
  std::uint8_t mask[kBlockTokens];
  for (std::int64_t i = 0; i < rows.count; ++i) mask[i] = rows.valid >> i & 1;
  masks_.Update(mask, rows.count);
  count_ += rows.count;
}

Digest TokenDigester::Result() const {
  Digester all;
  all.Update(count_);
  for (const Digester* part : {&keys_, &values_, &masks_, &log_decays_, &rates_}) {
    const Digest digest = part->Result();
    all.Update(&digest, sizeof digest);
  }
  return all.Result();
}

}  // namespace attnd::engine
