// Incoming tokens of one layer, and their rows as they are stored: f32, rounded to the engine's
// storage type, finite, the rows of masked tokens zero.
#ifndef ATTND_ENGINE_TOKEN_ROWS_H_
#define ATTND_ENGINE_TOKEN_ROWS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/block.h"
#include "engine/digest.h"
#include "engine/engine.h"
#include "engine/scratch.h"
#include "engine/tensor.h"

namespace attnd::engine {

// The largest magnitude of a log-decay; e^-10,000 of anything is 0.
inline constexpr float kMaxLogDecay = 10'000.0F;

// The largest rate of a delta rule: beyond it a step ends farther from its target than it began.
inline constexpr float kMaxRate = 2.0F;

// n tokens: keys [n, H, d_k], values [n, H, d_v]; `mask` is null or n bytes, 0 for a masked token;
// gates as the engine's TailLayout has them. Element counts fit the shape (the caller has checked
// them). Borrowed.
struct TokenBatch {
  std::int64_t count = 0;
  ConstElements keys;
  ConstElements values;
  const std::uint8_t* mask = nullptr;
  ConstElements log_decays = {};  // [n, log_decays]
  ConstElements rates = {};       // [n, rates]
};

// Up to 64 tokens in stored form; pointers into the batch or into scratch memory.
struct TokenRows {
  std::int64_t count = 0;
  const float* keys = nullptr;        // [count, H, d_k]
  const float* values = nullptr;      // [count, H, d_v]
  RowMask valid = 0;                  // bit i: row i is unmasked
  const float* log_decays = nullptr;  // [count, log_decays]
  const float* rates = nullptr;       // [count, rates]
};

// Rows [first, first + count) of the batch in stored form, count at most 64. Valid as long as the
// batch and the scratch frame. InvalidArgument, naming token and tensor, where a number is not
// finite, or not finite any more after rounding, and where a gate is out of range (log-decays:
// -kMaxLogDecay to 0; rates: 0 to kMaxRate).
absl::StatusOr<TokenRows> StoredRows(const Engine& engine, const TokenBatch& batch,
                                     std::int64_t first, std::int64_t count, Scratch& scratch);

// Collects the digest of the tokens of one layer in stored form; independent of cutting.
class TokenDigester {
 public:
  void Update(const Engine& engine, const TokenRows& rows);
  // The digest of all rows so far.
  Digest Result() const;

 private:
  std::int64_t count_ = 0;
  Digester keys_;
  Digester values_;
  Digester masks_;
  Digester log_decays_;
  Digester rates_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_TOKEN_ROWS_H_
