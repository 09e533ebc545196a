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

// A complete block as it is sealed: keys [64, H, d_k] and values [64, H, d_v], finite, in stored
// precision; the rows of masked tokens are zeros. `features` are the engine's features of the keys,
// [H, 64, feature_dim], where the tail already holds them, otherwise null. Borrowed.
struct Block {
  const float* keys = nullptr;
  const float* values = nullptr;
  RowMask valid = 0;
  const float* features = nullptr;
  const std::int32_t* exponents = nullptr;  // [H, 64], with features that are scaled
};

// The rows of an open block, shared between the layer states that see a prefix of them.
//
// One writer at a time (the layer's) writes row i before a state that shows row i is published, and
// never again; a reader touches only rows below its state's count. So readers need no lock. Rows
// that were never written are zeros.
struct Tail {
  // `feature_dim` 0: the engine keeps no features; `scaled`: each row of them has an exponent.
  Tail(const LayerShape& shape, std::int64_t feature_dim, bool scaled = false)
      : keys(kBlockTokens * shape.key_row()),
        values(kBlockTokens * shape.value_row()),
        features(kBlockTokens * shape.kv_heads * feature_dim),
        exponents(scaled ? kBlockTokens * shape.kv_heads : 0) {}

  std::int64_t bytes() const {
    return keys.bytes() + values.bytes() + features.bytes() + exponents.bytes();
  }
  // Of a tail before it is made.
  static std::int64_t Bytes(const LayerShape& shape, std::int64_t feature_dim) {
    return kBlockTokens * static_cast<std::int64_t>(sizeof(float)) *
           (shape.key_row() + shape.value_row() + shape.kv_heads * feature_dim);
  }

  AlignedBuffer<float> keys;      // [64, H, d_k]
  AlignedBuffer<float> values;    // [64, H, d_v]
  AlignedBuffer<float> features;  // [H, 64, feature_dim]; row i of a head is written with key row i
  AlignedBuffer<std::int32_t> exponents;  // [H, 64]; a row's features are times 2^exponent
};

// What a reader sees of a Tail.
struct TailView {
  const Tail* tail = nullptr;
  std::int64_t rows = 0;  // 0 to 64
  RowMask valid = 0;      // among the first `rows`
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_BLOCK_H_
