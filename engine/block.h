// The unit of the engine's arithmetic: 64 tokens of one layer on a grid of positions.
//
// A complete block is sealed (folded into an engine's sealed state) when the next token arrives;
// until then it is the layer's tail of 1 to 64 raw rows. The split depends on positions alone,
// which is what makes an answer independent of how tokens were cut into messages.
#ifndef ATTND_ENGINE_BLOCK_H_
#define ATTND_ENGINE_BLOCK_H_

#include <cstdint>

#include "engine/aligned_buffer.h"

namespace attnd::engine {

inline constexpr std::int64_t kBlockTokens = 64;

// The shape of one layer. Invariants: all sizes at least 1; query_heads is a multiple of kv_heads;
// query head h reads kv-head h / group_size().
struct LayerShape {
  std::int64_t kv_heads = 1;     // H
  std::int64_t query_heads = 1;  // Hq
  std::int64_t key_dim = 1;      // d_k
  std::int64_t value_dim = 1;    // d_v
  float scale = 1.0F;            // factor on query rows

  std::int64_t group_size() const { return query_heads / kv_heads; }
  std::int64_t key_row() const { return kv_heads * key_dim; }      // floats per token
  std::int64_t value_row() const { return kv_heads * value_dim; }  // floats per token
  std::int64_t query_row() const { return query_heads * key_dim; }
  std::int64_t output_row() const { return query_heads * value_dim; }
};

// Bit i set: row i of a block holds an unmasked token.
using RowMask = std::uint64_t;

constexpr RowMask FirstRows(std::int64_t count) {
  return count >= kBlockTokens ? ~RowMask{0} : (RowMask{1} << count) - 1;
}

// What an engine keeps of the rows of an open block beside keys and values: counts of numbers, 0
// where it has no use for them.
struct TailLayout {
  std::int64_t features = 0;    // per row and kv-head: of the key
  std::int64_t exponents = 0;   // per row and kv-head: powers of two of the features
  std::int64_t updates = 0;     // per row and kv-head: what a delta rule adds in place of the value
  std::int64_t log_decays = 0;  // per row: gates that came with the token
  std::int64_t rates = 0;       // per row: gates that came with the token
};

struct Tail;

// A complete block as it is sealed: keys [64, H, d_k], values [64, H, d_v] and the gates of its
// tokens, [64, log_decays] and [64, rates] of the TailLayout, finite, in stored precision; the rows
// of masked tokens are zeros. `encoded`: the tail that holds the block, with all that the engine
// wrote beside its rows; null where the rows did not pass through one. Borrowed.
struct Block {
  const float* keys = nullptr;
  const float* values = nullptr;
  RowMask valid = 0;
  const float* log_decays = nullptr;
  const float* rates = nullptr;
  const Tail* encoded = nullptr;
};

// The rows of an open block, shared between the layer states that see a prefix of them.
//
// One writer at a time (the layer's) writes row i before a state that shows row i is published, and
// never again; a reader touches only rows below its state's count. So readers need no lock. Rows
// that were never written are zeros.
struct Tail {
  Tail(const LayerShape& shape, const TailLayout& layout)
      : keys(kBlockTokens * shape.key_row()),
        values(kBlockTokens * shape.value_row()),
        log_decays(kBlockTokens * layout.log_decays),
        rates(kBlockTokens * layout.rates),
        features(kBlockTokens * shape.kv_heads * layout.features),
        exponents(kBlockTokens * shape.kv_heads * layout.exponents),
        updates(kBlockTokens * shape.kv_heads * layout.updates) {}

  std::int64_t bytes() const {
    return keys.bytes() + values.bytes() + log_decays.bytes() + rates.bytes() + features.bytes() +
           exponents.bytes() + updates.bytes();
  }
  // Of a tail before it is made.
  static std::int64_t Bytes(const LayerShape& shape, const TailLayout& layout) {
    static_assert(sizeof(float) == sizeof(std::int32_t));
    return kBlockTokens * static_cast<std::int64_t>(sizeof(float)) *
           (shape.key_row() + shape.value_row() + layout.log_decays + layout.rates +
            shape.kv_heads * (layout.features + layout.exponents + layout.updates));
  }

  // As they came, stored.
  AlignedBuffer<float> keys;        // [64, H, d_k]
  AlignedBuffer<float> values;      // [64, H, d_v]
  AlignedBuffer<float> log_decays;  // [64, TailLayout::log_decays]
  AlignedBuffer<float> rates;       // [64, TailLayout::rates]
  // What the engine makes of them; row i of a head is written after row i of the arrays above.
  AlignedBuffer<float> features;          // [H, 64, TailLayout::features]
  AlignedBuffer<std::int32_t> exponents;  // [H, 64, TailLayout::exponents]
  AlignedBuffer<float> updates;           // [H, 64, TailLayout::updates]
};

// What a reader sees of a Tail.
struct TailView {
  const Tail* tail = nullptr;
  std::int64_t rows = 0;  // 0 to 64
  RowMask valid = 0;      // among the first `rows`
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_BLOCK_H_
