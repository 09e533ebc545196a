// Scores of 64 keys that are held in 8 bits, for one query row held in 16: the pass over all keys
// of certified attention, at a quarter of the memory traffic of f32.
//
// Layout of the codes: components in pairs, [pairs][64 keys][2], so that a pair of a key's
// components is the operand of one widening multiply-add. An odd number of components is padded
// with a zero.
//
// Why 16 bits for the query: in 8 bits its own error makes the bound of a score 2.8 times as large
// (word vectors: 0.15 nats on average instead of 0.053) at the same cost, since products are taken
// in 16 bits either way; for a query in f32 the codes have to be converted, about 300 ns a block of
// d = 100 on Zen 4 against 106 (60 GB/s from the cache; memory gives 24, or 28 in large pages).
// Over 32,768 keys the scan takes a third of the time of the f32 scores (engine/simd/one_query.h).
//
// Same bits on every instruction set: sums of integers that cannot overflow, then one rounding to
// f32 and one fused multiply-add. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_SIMD_CODE_SCAN_H_
#define ATTND_ENGINE_SIMD_CODE_SCAN_H_

#include <cstdint>

namespace attnd::engine {

// scores[j] = fma(step * scales[j], sum_i query[i] codes[j][i], base) for the 64 keys, the sum
// rounded to f32. query: 2 * pairs numbers of which 127 * sum |query[i]| is below 2^31.
void ScanCodes(const std::int16_t* query, std::int64_t pairs, const std::int8_t* codes,
               const float* scales, float step, float base, float* scores);

// The same one key after the other.
void RefScanCodes(const std::int16_t* query, std::int64_t pairs, const std::int8_t* codes,
                  const float* scales, float step, float base, float* scores);

// The 64 products weights[j] * steps[j], none negative, as whole numbers of a step, of which the
// largest is 32767: whole[j] = round(weights[j] steps[j] / step). Returns the step; 0 where all
// products are 0.
float CodeWeights(const float* weights, const float* steps, std::int16_t* whole);

// acc[c] = fma(step, sum_j whole[j] codes[j][c], acc[c]), the sum rounded to f32, for rows of codes
// in pairs: [32][columns][2], columns a multiple of 16.
void SumCodes(const std::int16_t* whole, float step, const std::int8_t* codes, std::int64_t columns,
              float* acc);

// The same one column after the other.
void RefSumCodes(const std::int16_t* whole, float step, const std::int8_t* codes,
                 std::int64_t columns, float* acc);

// Weights relative to `reference` of 64 keys by their scores, written over them, and their sums:
//   weights[j] = exp(scores[j] - reference), 0 where the score is -inf
//   sum = sum_j weights[j], errors = sum_j weights[j] errors[j],
//   squares = sum_j weights[j] sizes[j]^2
// Scores are at most reference + 87. Sums run in 16 fixed lanes.
struct WeightSums {
  float sum = 0.0F;
  float errors = 0.0F;
  float squares = 0.0F;
};
WeightSums WeighScores(float* scores, float reference, const float* errors, const float* sizes);

// The same sums of weights that are there.
WeightSums SumWeights(const float* weights, const float* errors, const float* sizes);

// Bit j: weights[j] sizes[j]^2 > limit.
std::uint64_t SquaresAbove(const float* weights, const float* sizes, float limit);

// The largest of 64 scores.
float MaxScore(const float* scores);

// Bit j: scores[j] > threshold.
std::uint64_t ScoresAbove(const float* scores, float threshold);

// x . y in 16 lanes of fused multiply-adds, which are then added in halves.
float DotRows(const float* x, const float* y, std::int64_t n);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SIMD_CODE_SCAN_H_
