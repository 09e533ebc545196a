#include "engine/kde/certified/residual_sample.h"

#include <algorithm>
#include <bit>

#include "engine/block.h"
#include "engine/random.h"

namespace attnd::engine {
namespace {

// The key of a block whose weights, added in order, first pass `rest`. The sum of the weights may
// differ from the block's in its last bits: what lies beyond falls to the last key with a weight.
std::int64_t KeyAt(const float* weights, double rest) {
  std::int64_t last = 0;
  double sum = 0;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    if (weights[j] == 0.0F) continue;
    last = j;
    sum += static_cast<double>(weights[j]);
    if (sum > rest) break;
  }
  return last;
}

}  // namespace

std::uint64_t RowSeed(std::uint64_t seed, std::int64_t layer, std::int64_t query_head,
                      std::int64_t position, const float* query, std::int64_t key_dim) {
  std::uint64_t hash = StreamSeed(seed, static_cast<std::uint64_t>(layer));
  hash = StreamSeed(hash, static_cast<std::uint64_t>(query_head));
  hash = StreamSeed(hash, static_cast<std::uint64_t>(position));
  for (std::int64_t i = 0; i < key_dim; ++i) {
    hash = StreamSeed(hash, std::bit_cast<std::uint32_t>(query[i]));
  }
  return hash;
}

void DrawPairs(const ScannedWeights& scanned, std::int64_t pairs, std::uint64_t seed,
               std::vector<std::int64_t>& keys) {
  keys.clear();
  const auto weight = [&](std::int64_t block) {
    return static_cast<double>(scanned.block_weights[block]);
  };
  std::int64_t last = scanned.blocks - 1;
  while (last > 0 && weight(last) == 0) --last;
  std::int64_t block = 0;
  double before = 0;  // the weight of the blocks before `block`
  const double stratum = scanned.total / static_cast<double>(pairs);
  const auto draw = [&](double at) {
    while (block < last && before + weight(block) <= at) before += weight(block++);
    keys.push_back(block * kBlockTokens +
                   KeyAt(scanned.weights + block * kBlockTokens, at - before));
  };
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    const auto index = static_cast<std::uint64_t>(2 * pair);
    const double first = ToUniform(RandomAt(seed, index));
    const double second = ToUniform(RandomAt(seed, index + 1));
    draw((static_cast<double>(pair) + std::min(first, second)) * stratum);
    draw((static_cast<double>(pair) + std::max(first, second)) * stratum);
  }
}

}  // namespace attnd::engine
