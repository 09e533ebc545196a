// Makes a layer of its stored bytes (saved_layer.h): with the same answers, bit for bit, as the one
// that was saved, now and after any more tokens.
//
// A loader is made from the root, is given the segments that hold blocks [first_block(),
// until_block()) in ascending order, and gives the layer. Nothing that is stored is trusted: bytes
// that are damaged, cut off, of another version or of other rows are DataLoss, those of another
// layer InvalidArgument; memory is taken for what the bytes hold, never for a number alone. After
// an error the loader is of no use.
//
// Where the rows of all tokens are stored their digest is computed again and compared. Two cases
// rest on the root's checksum: the digest of what became sums, and, with a sliding window, that of
// blocks before first_block().
//
// Work comes in pieces: Take() and then Step() until it is true, each of which seals one block or
// prepares for it; or AddSegment(), which does both. One thread at a time. The engine outlives it.
#ifndef ATTND_ENGINE_LAYER_LOADER_H_
#define ATTND_ENGINE_LAYER_LOADER_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/byte_io.h"
#include "engine/digest.h"
#include "engine/engine.h"
#include "engine/layer_stream.h"
#include "engine/saved_form.h"
#include "engine/scratch.h"

namespace attnd::engine {

class LayerLoader {
 public:
  // The bytes of `root` are not needed any more afterwards.
  static absl::StatusOr<LayerLoader> Make(const Engine& engine, std::span<const char> root);

  // The blocks that segments are to hold; none for an engine that keeps sums.
  std::int64_t first_block() const { return first_block_; }
  std::int64_t until_block() const { return until_block_; }
  // The first of them that was not taken yet.
  std::int64_t next_block() const { return next_block_; }

  // Takes the next segment, whose bytes stay as they are until Step() is true. Its blocks before
  // first_block() and from until_block() on are passed over; otherwise it has to begin at
  // next_block(). FailedPrecondition while Step() is not true.
  absl::Status Take(std::span<const char> segment);

  // Does a piece, of a millisecond or so, of what can be done with what was taken. True when
  // nothing is left of that.
  absl::StatusOr<bool> Step(Scratch& scratch);

  absl::Status AddSegment(std::span<const char> segment, Scratch& scratch);

  // Ends the loader, doing what Step() would have. DataLoss where blocks are missing and where the
  // digest is not the one that was saved.
  absl::StatusOr<std::shared_ptr<const LayerState>> Finish(Scratch& scratch);

 private:
  LayerLoader(const Engine& engine, const std::shared_ptr<const LayerState>& base);

  absl::Status Append(const SavedRows& rows, Scratch& scratch);
  absl::Status RunSteps(Scratch& scratch);

  const Engine* engine_;
  LayerDraft draft_;
  std::int64_t first_block_ = 0;
  std::int64_t until_block_ = 0;
  std::int64_t next_block_ = 0;
  Digest sealed_digest_ = {};
  Digest digest_ = {};
  SavedRows tail_;
  std::int64_t tail_rows_ = 0;  // still to be appended
  ByteReader segment_{{}};
  std::int64_t segment_blocks_ = 0;  // still to be appended
  SavedRows rows_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LAYER_LOADER_H_
