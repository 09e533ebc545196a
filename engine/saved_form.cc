#include "engine/saved_form.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/simd/convert.h"

namespace attnd::engine {
namespace {

constexpr std::size_t kNameBytes = 8;
using Name = std::array<char, kNameBytes>;

struct Field {
  const char* name;
  std::int64_t value;
};

std::int64_t NumberBytes(const Engine& engine) { return engine.rounds_storage() ? 2 : 4; }

Name NameOf(const Engine& engine) {
  Name name{};
  std::strncpy(name.data(), engine.name(), name.size());
  return name;
}

std::array<Field, 9> FieldsOf(const Engine& engine) {
  const LayerShape& shape = engine.shape();
  const TailLayout layout = engine.tail_layout();
  return {{{"kv_heads", shape.kv_heads},
           {"query_heads", shape.query_heads},
           {"key_dim", shape.key_dim},
           {"value_dim", shape.value_dim},
           {"features of a key", engine.map_dim()},
           {"log-decays of a token", layout.log_decays},
           {"rates of a token", layout.rates},
           {"bytes of a stored number", NumberBytes(engine)},
           {"keeping of rows", engine.keeps_rows() ? 1 : 0}}};
}

template <typename Number>
std::span<const Number> Numbers(const Number* numbers, std::int64_t count) {
  return {numbers, static_cast<std::size_t>(count)};
}

void PutStored(const Engine& engine, const float* numbers, std::int64_t count, ByteWriter& writer) {
  if (!engine.rounds_storage()) {
    writer.PutAll(Numbers(numbers, count));
    return;
  }
  std::array<std::uint16_t, 1024> bits;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t part = std::min(count - done, static_cast<std::int64_t>(bits.size()));
    F32ToBf16(numbers + done, bits.data(), part);
    writer.PutAll(Numbers(bits.data(), part));
    done += part;
  }
}

// Reads rows of `row` numbers. False where they are not all there, or one that is masked is not
// zeros.
template <typename Number>
bool ReadRows(const std::vector<std::uint8_t>& mask, std::int64_t row, ByteReader& reader,
              std::vector<Number>& numbers) {
  const auto size = static_cast<std::size_t>(row);
  numbers.resize(mask.size() * size);
  reader.GetAll(std::span<Number>(numbers));
  for (std::size_t i = 0; i < mask.size(); ++i) {
    const auto bytes = std::as_bytes(std::span<const Number>(numbers).subspan(i * size, size));
    const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
    if (mask[i] == 0 && !std::ranges::all_of(bytes, is_zero)) return false;
  }
  return reader.ok();
}

template <typename Number>
ConstElements Elements(DataType type, const std::vector<Number>& numbers) {
  return {type, numbers.data(), static_cast<std::int64_t>(numbers.size())};
}

}  // namespace

void PutForm(const Engine& engine, std::uint32_t magic, ByteWriter& writer) {
  writer.Put(magic);
  writer.Put(kSavedVersion);
  const Name name = NameOf(engine);
  writer.PutAll(std::span<const char>(name));
  for (const Field& field : FieldsOf(engine)) writer.Put(field.value);
}

absl::Status CheckForm(const Engine& engine, std::uint32_t magic, const char* what,
                       ByteReader& reader) {
  if (reader.Get<std::uint32_t>() != magic) {
    return absl::DataLossError(absl::StrCat(what, ": the bytes are not one"));
  }
  const auto version = reader.Get<std::uint32_t>();
  if (version != kSavedVersion) {
    return absl::DataLossError(
        absl::StrCat(what, ": version ", version, "; this release reads ", kSavedVersion));
  }
  Name name{};
  reader.GetAll(std::span<char>(name));
  if (name != NameOf(engine)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": it is not one of an engine of kind ", engine.name()));
  }
  for (const Field& field : FieldsOf(engine)) {
    const auto stored = reader.Get<std::int64_t>();
    if (stored == field.value) continue;
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", field.name, " is ", stored,
                                                   "; of this layer it is ", field.value));
  }
  return absl::OkStatus();
}

std::int64_t StoredRowBytes(const Engine& engine, std::int64_t rows) {
  const LayerShape& shape = engine.shape();
  const TailLayout layout = engine.tail_layout();
  constexpr std::int64_t kGateBytes = sizeof(float);
  return static_cast<std::int64_t>(sizeof(RowMask)) +
         rows * ((shape.key_row() + shape.value_row()) * NumberBytes(engine) +
                 (layout.log_decays + layout.rates) * kGateBytes);
}

void PutRows(const Engine& engine, const Block& block, std::int64_t rows, ByteWriter& writer) {
  const LayerShape& shape = engine.shape();
  const TailLayout layout = engine.tail_layout();
  writer.Put(block.valid);
  PutStored(engine, block.keys, rows * shape.key_row(), writer);
  PutStored(engine, block.values, rows * shape.value_row(), writer);
  writer.PutAll(Numbers(block.log_decays, rows * layout.log_decays));
  writer.PutAll(Numbers(block.rates, rows * layout.rates));
}

bool SavedRows::Read(const Engine& engine, std::int64_t rows, ByteReader& reader) {
  if (reader.left() < StoredRowBytes(engine, rows)) return false;
  const LayerShape& shape = engine.shape();
  const TailLayout layout = engine.tail_layout();
  const auto valid = reader.Get<RowMask>();
  if ((valid & ~FirstRows(rows)) != 0) return false;
  count_ = rows;
  mask_.resize(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < mask_.size(); ++i) mask_[i] = valid >> i & 1;
  type_ = engine.rounds_storage() ? DataType::kBf16 : DataType::kF32;
  const bool stored = type_ == DataType::kBf16
                          ? ReadRows(mask_, shape.key_row(), reader, bf16_keys_) &&
                                ReadRows(mask_, shape.value_row(), reader, bf16_values_)
                          : ReadRows(mask_, shape.key_row(), reader, keys_) &&
                                ReadRows(mask_, shape.value_row(), reader, values_);
  return stored && ReadRows(mask_, layout.log_decays, reader, log_decays_) &&
         ReadRows(mask_, layout.rates, reader, rates_);
}

TokenBatch SavedRows::batch() const {
  TokenBatch batch;
  batch.count = count_;
  batch.keys = type_ == DataType::kF32 ? Elements(type_, keys_) : Elements(type_, bf16_keys_);
  batch.values = type_ == DataType::kF32 ? Elements(type_, values_) : Elements(type_, bf16_values_);
  batch.mask = mask_.data();
  batch.log_decays = Elements(DataType::kF32, log_decays_);
  batch.rates = Elements(DataType::kF32, rates_);
  return batch;
}

}  // namespace attnd::engine
