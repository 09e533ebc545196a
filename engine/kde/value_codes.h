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
#ifndef ATTND_ENGINE_KDE_VALUE_CODES_H_
#define ATTND_ENGINE_KDE_VALUE_CODES_H_

#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/exact/key_value_state.h"

namespace attnd::engine {

// The codes of one block. Borrowed.
struct ValueCodes {
  const std::int8_t* codes = nullptr;  // [64][padded d_v]; null: zeros
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
  AlignedBuffer<std::int8_t> codes_;   // [blocks][64][padded d_v]
  AlignedBuffer<float> steps_;         // [blocks][64]
  std::vector<const float*> centres_;  // [blocks]
};

// sum [padded d_v] += the sum of weights[j] v^_j, less that of the centres.
void AddWeightedCodes(const ValueCodes& block, const float* weights, std::int64_t padded_value_dim,
                      float* sum);

// out [padded d_v] = v^ of row `row`, centre included.
void DecodeValue(const ValueCodes& block, std::int64_t row, std::int64_t padded_value_dim,
                 float* out);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_VALUE_CODES_H_
