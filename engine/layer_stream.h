// One layer's stream of tokens, written once for all engines: the block grid, the open tail, masks,
// and the making of new immutable states.
//
// A LayerState is what readers see: immutable and shared. A LayerDraft is the one writer's next
// state in the making; nobody sees it before Finish(), and dropping it leaves nothing behind. At
// most one draft of a layer exists at a time, and it starts from the newest published state: drafts
// write tail rows (and engines write storage) past the end of what that state shows.
//
// When a block is sealed depends on the position alone: a complete block is sealed when the next
// token arrives. So a state is a pure function of the tokens, however they were cut into messages.
#ifndef ATTND_ENGINE_LAYER_STREAM_H_
#define ATTND_ENGINE_LAYER_STREAM_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "engine/block.h"
#include "engine/digest.h"
#include "engine/engine.h"
#include "engine/scratch.h"
#include "engine/token_rows.h"

namespace attnd::engine {

// Invariants: sealed_tokens is a multiple of 64; 0 <= tail_rows <= 64; a state with tokens has at
// least one tail row.
struct LayerState {
  std::shared_ptr<const SealedState> sealed;
  std::int64_t sealed_tokens = 0;
  // The rows of the open block; null before the first token. Only a LayerDraft writes to it.
  std::shared_ptr<Tail> tail;
  std::int64_t tail_rows = 0;
  RowMask tail_valid = 0;
  Digest digest = {};  // of the sealed blocks; see state_digest.h

  std::int64_t position() const { return sealed_tokens + tail_rows; }
  TailView tail_view() const { return {tail.get(), tail_rows, tail_valid}; }
  std::int64_t bytes() const;
};

std::shared_ptr<const LayerState> EmptyLayer(const Engine& engine);

// The digest of all tokens of `state`, those of its open block included.
Digest LayerDigest(const Engine& engine, const LayerState& state);

class LayerDraft {
 public:
  // `engine` outlives the draft.
  LayerDraft(const Engine& engine, const std::shared_ptr<const LayerState>& base);

  // Appends tokens [first, first + count) of the batch and adds their stored form to `digester`
  // (may be null). InvalidArgument for numbers that are not finite, OutOfRange for sums that leave
  // the range of f32; the draft is then unusable.
  absl::Status Append(const TokenBatch& batch, std::int64_t first, std::int64_t count,
                      TokenDigester* digester, Scratch& scratch);

  // Does a piece of what sealing will need before `count` more tokens have been appended, at most
  // 64. True when nothing is left that can be done before; see Engine::PrepareSeal.
  bool PrepareSeal(std::int64_t count, Scratch& scratch) const;

  // Whether the open block can be sealed later without leaving the range of f32; a draft may be
  // published only after this was OK.
  absl::Status CheckTail(Scratch& scratch) const;

  std::int64_t position() const { return state_.position(); }
  // Rows the open block can still take before it is full: the most that can be appended so that all
  // of them share one QueryGroup.
  std::int64_t open_rows() const;

  // What the draft holds now; valid until the next Append.
  const LayerState& state() const { return state_; }

  // The state to publish. Ends the draft.
  std::shared_ptr<const LayerState> Finish();

 private:
  absl::Status SealTail(Scratch& scratch);
  absl::Status SealBlocks(const TokenBatch& batch, std::int64_t first, std::int64_t blocks,
                          TokenDigester* digester, Scratch& scratch);
  void WriteTail(const TokenRows& rows, Scratch& scratch);
  SealedState& OwnSealed();

  const Engine& engine_;
  LayerState state_;
  std::shared_ptr<SealedState> own_sealed_;  // state_.sealed once this draft has made its own
};

// The queries of an Attend: each sees all tokens of `state`. Borrows from it.
QueryGroup AttendGroup(const LayerState& state, const float* queries, std::int64_t count,
                       const std::int64_t* positions = nullptr);

// The queries of the `count` newest tokens of `state`, all of its open block: query i sees the
// tokens up to and including its own. Borrows from it.
QueryGroup StepGroup(const LayerState& state, const float* queries, std::int64_t count);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LAYER_STREAM_H_
