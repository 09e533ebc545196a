// Keys in 8 bits with a rigorous bound on what that costs a score.
//
// A key k is held as k^ = c + a z: c a centre that 64 keys share (their mean, or zero), a the key's
// own step, z whole numbers in [-127, 127]; and e = ||k - k^||, measured in f64 and rounded up. A
// query row q is held as q^ = b y with y whole numbers in 16 bits. Then, by Cauchy & Schwarz,
//   |q.k - (q.c + q^.(a z))| <= ||q|| e + ||q - q^|| ||a z||,
// and to that comes the rounding of the arithmetic, (2 d + 16) 2^-24 ||q|| times the largest norm
// of the block's keys, centre and codes. ScoreBound is that sum: it holds for the score in real
// numbers as for the f32 one of engine/simd/one_query.h.
//
// Memory: d bytes (rounded up to even) and 8 for step and error per key, 24 per block of 64.
// Immutable once encoded; then readable from any thread. Cannot fail: where a key leaves the range
// of this arithmetic its error is +inf, and so are the bounds.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_KEY_CODES_H_
#define ATTND_ENGINE_KDE_CERTIFIED_KEY_CODES_H_

#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/exact/key_value_state.h"

namespace attnd::engine {

// The codes of one block. Borrowed.
struct KeyCodes {
  const std::int8_t* codes = nullptr;  // [pairs][64][2], engine/simd/code_scan.h
  const float* steps = nullptr;        // [64], a
  const float* errors = nullptr;       // [64], e; 0 where masked
  const float* centre = nullptr;       // [d], or null: zero
  float max_error = 0.0F;              // of the block's keys
  float max_code_norm = 0.0F;          // ||a z||
  float max_norm = 0.0F;               // of ||k||, ||c|| and ||a z||
};

// The codes of consecutive blocks of one kv-head.
class CodedKeys {
 public:
  // Memory for `blocks` blocks of keys with `key_dim` components. Throws std::bad_alloc.
  CodedKeys(std::int64_t key_dim, std::int64_t blocks);

  // Encodes `block` as number `index`. `centre` [d] is null for zero, and is kept as a pointer: it
  // outlives this object.
  void Encode(std::int64_t index, const BlockView<float>& block, const float* centre);

  KeyCodes block(std::int64_t index) const;
  std::int64_t bytes() const;
  // Per block, for planning.
  static std::int64_t BlockBytes(std::int64_t key_dim);

 private:
  struct BlockNorms {
    const float* centre = nullptr;
    float max_error = 0.0F;
    float max_code_norm = 0.0F;
    float max_norm = 0.0F;
  };

  std::int64_t key_dim_;
  std::int64_t pairs_;
  AlignedBuffer<std::int8_t> codes_;  // [blocks][pairs][64][2]
  AlignedBuffer<float> factors_;      // [blocks][2][64]: steps, errors
  std::vector<BlockNorms> norms_;     // [blocks]
};

// How far a block's scores can be from the true ones: key j's by per_error * errors[j] + constant.
struct ScoreBound {
  float per_error = 0.0F;
  float constant = 0.0F;

  // 2^-20 for the rounding of the sum itself.
  float Of(float error) const { return (per_error * error + constant) * (1 + 0x1p-20F); }
};

// A query row in 16 bits. Keeps its memory between rows. One thread at a time.
class CodedQuery {
 public:
  // `query` [d] is scaled and stays where it is while scores are taken.
  void Set(const float* query, std::int64_t key_dim);

  // The scores of a block's 64 keys, masked ones included.
  void Scores(const KeyCodes& block, float* scores) const;
  void RefScores(const KeyCodes& block, float* scores) const;

  // Rounded up. Infinite or NaN where the numbers leave f32.
  ScoreBound Bound(const KeyCodes& block) const;

 private:
  float Base(const KeyCodes& block) const;

  const float* query_ = nullptr;
  std::int64_t key_dim_ = 0;
  std::vector<std::int16_t> codes_;  // [2 * pairs]
  float step_ = 0.0F;
  // All rounded up.
  float norm_ = 0.0F;      // ||q||
  float error_ = 0.0F;     // ||q - q^||
  float rounding_ = 0.0F;  // of the arithmetic, per unit of the largest norm
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_KEY_CODES_H_
