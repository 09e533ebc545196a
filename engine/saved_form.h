// What roots and segments of a layer have in common in their stored form; saved_layer.h describes
// it. Pure functions; any thread.
#ifndef ATTND_ENGINE_SAVED_FORM_H_
#define ATTND_ENGINE_SAVED_FORM_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/block.h"
#include "engine/byte_io.h"
#include "engine/engine.h"
#include "engine/tensor.h"
#include "engine/token_rows.h"

namespace attnd::engine {

inline constexpr std::uint32_t kRootMagic = 0x52544141;     // "AATR"
inline constexpr std::uint32_t kSegmentMagic = 0x53544141;  // "AATS"
inline constexpr std::uint32_t kSavedVersion = 1;

// Magic, version and the form of the engine's layers.
void PutForm(const Engine& engine, std::uint32_t magic, ByteWriter& writer);

// DataLoss where the bytes are not `what` or of another version, InvalidArgument, naming the field,
// where they are of a layer of another form.
absl::Status CheckForm(const Engine& engine, std::uint32_t magic, const char* what,
                       ByteReader& reader);

// Of n rows, their mask included.
std::int64_t StoredRowBytes(const Engine& engine, std::int64_t rows);

// `block` as it is sealed, or the first rows of an open one.
void PutRows(const Engine& engine, const Block& block, std::int64_t rows, ByteWriter& writer);

// Rows that were read, as a layer takes tokens.
class SavedRows {
 public:
  // Reads `rows` (at most 64) rows. False where they are not all there, where the mask has more,
  // and where one that is masked is not zeros.
  bool Read(const Engine& engine, std::int64_t rows, ByteReader& reader);

  // Valid until the next Read().
  TokenBatch batch() const;

 private:
  std::int64_t count_ = 0;
  DataType type_ = DataType::kF32;
  std::vector<std::uint8_t> mask_;
  std::vector<float> keys_;    // f32
  std::vector<float> values_;  // f32
  std::vector<std::uint16_t> bf16_keys_;
  std::vector<std::uint16_t> bf16_values_;
  std::vector<float> log_decays_;
  std::vector<float> rates_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SAVED_FORM_H_
