// One head's rows of a block, with their features: of a block that is sealed, and of the open one.
//
// Any thread.
#ifndef ATTND_ENGINE_LINEAR_BLOCK_ROWS_H_
#define ATTND_ENGINE_LINEAR_BLOCK_ROWS_H_

#include <array>
#include <cstdint>

#include "engine/block.h"
#include "engine/linear/fold.h"
#include "engine/linear/linear_layer.h"
#include "engine/scratch.h"

namespace attnd::engine {

// Where features are mapped to that no tail holds. Valid as long as the scratch frame.
struct MappedRows {
  MappedRows(const LinearLayer& layer, Scratch& scratch)
      : features(scratch.Take(kBlockTokens * layer.dims.features)) {}

  float* features;
  std::array<std::int32_t, kBlockTokens> exponents = {};
};

// The rows of a complete block whose first token stands at `position`. Borrows from the block, and
// from `mapped`, which the next call overwrites, where the block does not come with its features.
HeadRows SealedRows(const LinearLayer& layer, const Block& block, std::int64_t position,
                    std::int64_t head, MappedRows& mapped, Scratch& scratch);

// The rows of the open block that the view shows. Borrows from the tail.
HeadRows OpenRows(const LinearLayer& layer, const TailView& tail, std::int64_t head);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_BLOCK_ROWS_H_
