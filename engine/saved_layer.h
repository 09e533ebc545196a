// Stored bytes of a layer: a root, and segments of the rows of its sealed blocks. layer_loader.h
// makes the layer of them again.
//
// A root is written anew whenever a layer is saved. It is small for engines that keep their rows
// (Engine::keeps_rows()): the open block and what tells the whole from another; their sealed blocks
// are in segments, which are written once and never rewritten. Of engines that keep sums the root
// is all there is, and as small whatever the length.
//
// Numbers are little-endian, without padding.
//   root:     u32 kRootMagic, u32 kSavedVersion, form
//             i64 sealed tokens, i64 tail rows, i64 first kept block
//             u64 digest of the sealed blocks [2], u64 digest of all tokens [2] (state_digest.h)
//             rows of the open block; the engine's sums (Engine::Save), if it keeps no rows
//             u64 XXH3 64 of all before
//   segment:  u32 kSegmentMagic, u32 kSavedVersion, form
//             i64 first block, i64 count (1 to kMostSegmentBlocks)
//             rows of each block
//             u64 XXH3 64 of all before
//   form:     the engine's name, 8 bytes filled up with zeros; i64 kv_heads, query_heads, key_dim,
//             value_dim, c, log-decays and rates of a token, bytes of a stored number (4: f32, 2:
//             bfloat16), 1 where the engine keeps rows and else 0
//   rows:     u64 mask (bit i: row i is unmasked), keys [n, H, d_k] and values [n, H, d_v] as
//   stored
//             numbers, log-decays and rates f32; masked rows are zeros. n is 64 for sealed blocks.
//
// The form tells layers of different shapes and kinds apart, not configurations: whoever stores
// bytes keeps the engine's configuration with them. What an approximate engine has learned from
// audits is not saved: answers are those of the layer that was saved, stated errors begin anew.
//
// Limits: positions to 2^62. Edges: a layer without tokens has a root, too. A segment may hold
// blocks that a sliding window has passed since, and blocks that a shorter layer, which shares it,
// does not have; a loader takes of it what its root asks for.
//
// A version that a release has written is read by every later one. Pure functions; any thread.
#ifndef ATTND_ENGINE_SAVED_LAYER_H_
#define ATTND_ENGINE_SAVED_LAYER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/layer_stream.h"

namespace attnd::engine {

inline constexpr std::int64_t kMostSegmentBlocks = 64;

// The root of a state of this engine. Unimplemented for an engine that saves neither rows nor sums.
absl::StatusOr<std::string> SaveRoot(const Engine& engine, const LayerState& state);

// The rows of sealed blocks [first_block, first_block + blocks). InvalidArgument for an engine that
// keeps no rows, for a range that is not within the blocks that the state keeps, and for more than
// kMostSegmentBlocks.
absl::StatusOr<std::string> SaveSegment(const Engine& engine, const LayerState& state,
                                        std::int64_t first_block, std::int64_t blocks);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_SAVED_LAYER_H_
