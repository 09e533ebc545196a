// The stored form of the sums of a sliding window.
//
//   u8   SavedSums::kWindow
//   i64  blocks that a full window holds
//   and the nodes of the window, in the order in which they are added, each with what its list
//   keeps after it (sum_node.h), the larger halves first:
//   i64  unmasked tokens
//   then for each kv-head: i32 exponent, i64 share, and S and Z as saved_linear_state.h has them,
//   in f32 for a node of one block, in f64 for others.
//
// Which nodes there are, of which levels, follows from the blocks sealed so far and the window; it
// is not stored. The summary is added up from the nodes again.
//
// Any thread; state, writer and reader belong to the caller.
#ifndef ATTND_ENGINE_LINEAR_SAVED_WINDOW_H_
#define ATTND_ENGINE_LINEAR_SAVED_WINDOW_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/byte_io.h"
#include "engine/linear/linear_layer.h"
#include "engine/linear/window_state.h"

namespace attnd::engine {

void SaveWindow(const LinearLayer& layer, const WindowState& state, ByteWriter& writer);

// Into a state without tokens. DataLoss, leaving the state unusable, where the bytes are not those
// of one of `sealed_tokens` tokens with the same window.
absl::Status LoadWindow(const LinearLayer& layer, std::int64_t sealed_tokens, ByteReader& reader,
                        WindowState& state);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_SAVED_WINDOW_H_
