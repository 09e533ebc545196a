#include "engine/linear/saved_linear_state.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>

#include "absl/strings/str_cat.h"
#include "engine/linear/fold.h"
#include "engine/linear/row_exponents.h"

namespace attnd::engine {
namespace {

// c; of Efficient Attention, whose layer has no map, d_k.
std::int64_t Features(const LinearLayer& layer) {
  return layer.map == nullptr ? layer.shape.key_dim : layer.map->feature_dim();
}

template <typename Number>
double Largest(std::span<const Number> numbers) {
  double largest = 0;
  for (const Number number : numbers) {
    const auto magnitude = static_cast<double>(std::abs(number));
    largest = magnitude <= std::numeric_limits<double>::max()
                  ? std::max(largest, magnitude)
                  : std::numeric_limits<double>::infinity();
  }
  return largest;
}

}  // namespace

absl::Status DamagedSums(const char* what) {
  return absl::DataLossError(absl::StrCat("saved sums: ", what));
}

std::int64_t StoredTotalsBytes(const LinearLayer& layer, std::int64_t number_bytes) {
  return Features(layer) * (layer.shape.value_dim + 1) * number_bytes;
}

bool FitsExponent(const LinearLayer& layer, std::int32_t exponent, std::int64_t unmasked) {
  const bool scaled = layer.map != nullptr && layer.map->scaled();
  if (!scaled || unmasked == 0) return exponent == kNoExponent;
  return exponent >= -kMaxExponent && exponent <= kMaxExponent;
}

template <typename Number>
void PutTotals(const LinearLayer& layer, const Number* totals, ByteWriter& writer) {
  const LinearDims& dims = layer.dims;
  const auto columns = static_cast<std::size_t>(dims.value_dim);
  for (std::int64_t a = 0; a < Features(layer); ++a) {
    writer.PutAll(std::span<const Number>(totals + a * dims.value_columns, columns));
  }
  writer.PutAll(std::span<const Number>(totals + dims.features * dims.value_columns,
                                        static_cast<std::size_t>(Features(layer))));
}

template <typename Number>
double GetTotals(const LinearLayer& layer, ByteReader& reader, Number* totals) {
  const LinearDims& dims = layer.dims;
  double largest = 0;
  const auto get = [&](Number* numbers, std::int64_t count) {
    const std::span<Number> row(numbers, static_cast<std::size_t>(count));
    reader.GetAll(row);
    largest = std::max(largest, Largest<Number>(row));
  };
  for (std::int64_t a = 0; a < Features(layer); ++a) {
    get(totals + a * dims.value_columns, dims.value_dim);
  }
  get(totals + dims.features * dims.value_columns, Features(layer));
  return largest;
}

template void PutTotals(const LinearLayer&, const float*, ByteWriter&);
template void PutTotals(const LinearLayer&, const double*, ByteWriter&);
template double GetTotals(const LinearLayer&, ByteReader&, float*);
template double GetTotals(const LinearLayer&, ByteReader&, double*);

void SaveLinearState(const LinearLayer& layer, SavedSums kind, const LinearState& state,
                     ByteWriter& writer) {
  writer.Put(static_cast<std::uint8_t>(kind));
  writer.Put(state.unmasked());
  if (!state.has_sums()) return;
  for (std::int64_t head = 0; head < layer.shape.kv_heads; ++head) {
    writer.Put(state.exponent(head));
    PutTotals(layer, state.totals(head), writer);
  }
}

absl::Status LoadLinearState(const LinearLayer& layer, SavedSums kind, std::int64_t sealed_tokens,
                             ByteReader& reader, LinearState& state) {
  if (reader.Get<std::uint8_t>() != static_cast<std::uint8_t>(kind)) {
    return DamagedSums("they are another engine's");
  }
  const auto unmasked = reader.Get<std::int64_t>();
  if (unmasked < 0 || unmasked > sealed_tokens) {
    return DamagedSums("they have more unmasked tokens than there are tokens");
  }
  if (sealed_tokens == 0) return reader.ok() ? absl::OkStatus() : DamagedSums("they are cut off");
  const std::int64_t head_bytes =
      static_cast<std::int64_t>(sizeof(std::int32_t)) + StoredTotalsBytes(layer, sizeof(double));
  if (reader.left() / layer.shape.kv_heads < head_bytes) return DamagedSums("they are cut off");
  state.AllocateSums();
  for (std::int64_t head = 0; head < layer.shape.kv_heads; ++head) {
    state.exponent(head) = reader.Get<std::int32_t>();
    if (!FitsExponent(layer, state.exponent(head), unmasked)) {
      return DamagedSums("an exponent is out of range");
    }
    const double largest = GetTotals(layer, reader, state.totals(head));
    // Halfway from the largest float to 2^128, where rounding gives infinity.
    if (!(largest < 0x1.ffffffp+127)) return DamagedSums("one leaves the range of f32");
    RoundSummary(layer.dims, head, state);
  }
  state.AddUnmasked(unmasked);
  return absl::OkStatus();
}

}  // namespace attnd::engine
