// The digest of a layer's tokens as they are stored, which tells whether a state is the one that
// was saved.
//
// It is chained per block of the grid: d' = XXH3 128 of (d, rows, mask, XXH3 128 of the keys, of
// the values, of the log-decays, of the rates), beginning with zeros. So it depends on the tokens
// alone, not on how they were cut into messages, and not on whether a complete block is sealed yet.
// It guards against mistakes, not against an adversary. Stateless; any thread.
#ifndef ATTND_ENGINE_STATE_DIGEST_H_
#define ATTND_ENGINE_STATE_DIGEST_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/digest.h"

namespace attnd::engine {

// `before`, continued by the first `rows` (1 to 64) rows of a block; bits of `block.valid` beyond
// them are 0. Gates are read where the layout has some.
Digest ChainBlock(const Digest& before, const LayerShape& shape, const TailLayout& layout,
                  const Block& block, std::int64_t rows = kBlockTokens);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_STATE_DIGEST_H_
