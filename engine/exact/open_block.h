// The open block in the layout of a stored one, for softmax engines. Thread-safe; cannot fail but
// for std::bad_alloc from scratch.
#ifndef ATTND_ENGINE_EXACT_OPEN_BLOCK_H_
#define ATTND_ENGINE_EXACT_OPEN_BLOCK_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/exact/key_value_state.h"
#include "engine/scratch.h"

namespace attnd::engine {

// A copy of one kv-head's rows; valid until the scratch frame ends. Rows from tail.rows on may be
// being written: they are zeros here.
BlockView<float> OpenBlock(const TailView& tail, const LayerShape& shape, std::int64_t kv_head,
                           Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_OPEN_BLOCK_H_
