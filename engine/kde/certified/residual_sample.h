// Keys drawn with probabilities proportional to their scanned weights, to estimate what the keys
// that are not evaluated add to an answer.
//
// The total weight S is cut in strata of equal weight, along the keys' order, and two keys are
// drawn independently from each: a key's expected number of draws is m w^ / S exactly, so that S /
// m times the sum of f(key) / w^ over the draws is unbiased for the sum of f. Half the squared
// difference within a pair is an unbiased estimate of a stratum's variance, which systematic
// sampling (one draw per stratum, or one shift for all) does not have. Neighbouring keys of an
// index are alike, so strata take away much of what would vary between them.
//
// Random numbers: engine/random.h, number i of the row's seed for draw i. Thread-safe.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_RESIDUAL_SAMPLE_H_
#define ATTND_ENGINE_KDE_CERTIFIED_RESIDUAL_SAMPLE_H_

#include <cstdint>
#include <vector>

namespace attnd::engine {

// Where a query row stands and what it is, as one seed: of the session, the layer, the query head,
// the position answered, and the bits of the row [key_dim]. Nothing else may decide what is drawn.
std::uint64_t RowSeed(std::uint64_t seed, std::int64_t layer, std::int64_t query_head,
                      std::int64_t position, const float* query, std::int64_t key_dim);

// weights [blocks, 64], at least 0; block_weights [blocks], their sums, of which one is above 0.
struct ScannedWeights {
  const float* weights = nullptr;
  const float* block_weights = nullptr;
  std::int64_t blocks = 0;
  double total = 0.0;  // of block_weights, added in order
};

// 2 * `pairs` keys (64 * block + row), those of stratum h at 2 h and 2 h + 1; all in
// ascending order. A key may come up more than once; never one of weight 0.
void DrawPairs(const ScannedWeights& scanned, std::int64_t pairs, std::uint64_t seed,
               std::vector<std::int64_t>& keys);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_RESIDUAL_SAMPLE_H_
