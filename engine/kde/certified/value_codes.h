// Values in 8 bits, as controls of a sample: v^ = c + a z with c a centre that 64 values share
// (their mean, or zero), a the value's own step, z whole numbers in [-127, 127].
//
// Nothing rests on them being near the values but the size of a sample's error: the weighted sum of
// all controls is known, and a sample adds what values differ from them. Means alone as controls
// leave the spread within a leaf to the sample; with codes about a hundredth of it is left (scores
// are known to about as much), so that a sample of 128 draws tells an answer to a thousandth of the
// values' spread.
//
// Memory: d_v bytes (rounded up as stored values are) and 4 per value, 8 per block. Immutable once
// encoded; then readable from any thread. Cannot fail.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_VALUE_CODES_H_
#define ATTND_ENGINE_KDE_CERTIFIED_VALUE_CODES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/exact/key_value_state.h"

namespace attnd::engine {

// The codes of one block. Borrowed.
struct ValueCodes {
  const std::int8_t* codes = nullptr;  // [32][padded d_v][2], rows in pairs; null: zeros
  const float* steps = nullptr;        // [64]; may be there without codes
  const float* centre = nullptr;       // [padded d_v], or null: zero
};

// The codes of consecutive blocks of one kv-head.
class CodedValues {
 public:
  // Memory for `blocks` blocks. Throws std::bad_alloc.
  CodedValues(std::int64_t padded_value_dim, std::int64_t blocks);

  // Encodes `block` as number `index`. `centre` [padded d_v] is null for zero, and is kept as a
  // pointer: it outlives this object.
  void Encode(std::int64_t index, const BlockView<float>& block, const float* centre);

  ValueCodes block(std::int64_t index) const;
  std::int64_t bytes() const;
  // Per block, for planning.
  static std::int64_t BlockBytes(std::int64_t padded_value_dim);

 private:
  std::int64_t padded_value_dim_;
  AlignedBuffer<std::int8_t> codes_;   // [blocks][32][padded d_v][2]
  AlignedBuffer<float> steps_;         // [blocks][64]
  std::vector<const float*> centres_;  // [blocks]
};

// What 64 weights w^ make of a block's codes. Weights times steps are rounded to 16 bits of the
// largest of them, so that their products with codes are whole numbers; a row's control is then not
// v^ but what these numbers say, c + (step * whole / w^) z, and the controls' sum stays known.
class WeightedCodes {
 public:
  // weights [64], at least 0.
  WeightedCodes(const ValueCodes& block, const float* weights);

  // sum [padded d_v] += the sum of w^ times control, less that of w^ times centre.
  void AddTo(std::int64_t padded_value_dim, float* sum) const;

  // out [padded d_v] = the control of row `row`, whose weight is above 0.
  void Control(std::int64_t row, std::int64_t padded_value_dim, float* out) const;

 private:
  const ValueCodes& block_;
  const float* weights_;
  float step_ = 0.0F;
  alignas(64) std::array<std::int16_t, kBlockTokens> whole_ = {};
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_VALUE_CODES_H_
