// Exact attention of one query group, cut into chains and quanta.
//
// The keys are split every 16,384 tokens by position. A tile of query rows passes over a split's
// blocks in order with online softmax; the open block is the last block of the last split. The sums
// of the splits are merged in ascending order. This is the one definition of an answer's bits. What
// is left to choose, and chosen for speed alone, is who does it: with few tiles every split is a
// chain of its own and Finish() merges; with many a chain goes through all splits of its tile,
// merges as it goes and writes its rows itself, so that neither memory nor Finish() grows with the
// context.
//
// With a sliding window the first block is the first one of which a query of the group sees a
// token. A row sees nothing of the blocks and splits before its own window, and nothing added to
// its sums leaves their bits as they were: it does not matter who else is in the group.
//
// Thread safety: as engine.h demands of an AttendPlan.
#ifndef ATTND_ENGINE_EXACT_EXACT_PLAN_H_
#define ATTND_ENGINE_EXACT_EXACT_PLAN_H_

#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/exact/attend_block.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/row_tile.h"
#include "engine/exact/softmax_sums.h"
#include "engine/exact/token_window.h"
#include "engine/exact/top_keys.h"
#include "engine/scratch.h"

namespace attnd::engine {

inline constexpr std::int64_t kSplitBlocks = 256;  // 16,384 tokens

// How a group's work is divided, which its sizes alone decide.
struct ExactPlanSizes {
  // `split_count`: of the keys, at least 1; `queries` as in QueryGroup::count.
  ExactPlanSizes(const LayerShape& shape, std::int64_t split_count, std::int64_t queries,
                 std::int64_t top_k);

  std::int64_t chains() const { return tiles * split_chains; }
  // Memory that a plan of these sizes keeps.
  std::int64_t bytes(std::int64_t top_k) const;

  std::int64_t splits = 0;
  std::int64_t head_rows = 0;     // query rows per kv-head
  std::int64_t tile_rows = 0;     // of the largest tile, with padding
  std::int64_t head_tiles = 0;    // tiles per kv-head
  std::int64_t tiles = 0;         // of all kv-heads
  std::int64_t split_chains = 0;  // chains per tile: splits, or 1
  std::int64_t slots = 0;         // sums per tile
  std::int64_t slot_floats = 0;   // of one of them
};

// The most splits of a context of `tokens` tokens, of which a window is seen.
std::int64_t MostSplits(std::int64_t tokens, TokenWindow window);

// Element: the storage type, see segment.h. The shape is copied.
template <typename Element>
class ExactPlan final : public AttendPlan {
 public:
  ExactPlan(const LayerShape& shape, TokenWindow window)
      : shape_(shape), window_(window), layout_(shape), sizes_(shape, 1, 1, 0) {}

  void Reset(const QueryGroup& group, const AnswerView& answer) override;
  std::int64_t chains() const override { return sizes_.chains(); }
  bool Run(std::int64_t chain, Scratch& scratch) override;
  void Finish(Scratch& scratch) override;

 private:
  // What chains keep between quanta. A chain of one split has the slot of its number; a chain of
  // several has slot 1 for the current split and slot 0 for the splits before.
  SoftmaxSums Sums(std::int64_t tile, std::int64_t slot);
  TopKeys Top(std::int64_t tile, std::int64_t split_chain);

  RowTile Tile(std::int64_t tile) const;
  // Where a chain begins.
  std::int64_t FirstBlock(std::int64_t split_chain) const;
  void PackQueries(const RowTile& tile, float* packed) const;
  void AttendSealedBlock(const RowTile& tile, std::int64_t index, const TileWork& work) const;
  void AttendOpenBlock(const RowTile& tile, const TileWork& work, Scratch& scratch) const;
  // How many tokens a query sees from the start of the context on, but for the window.
  std::int64_t Position(std::int64_t query) const;
  void WriteRows(const RowTile& tile, const SoftmaxSums& sums, const TopKeys& top) const;
  std::int64_t BlocksPerQuantum() const;

  const LayerShape shape_;
  const TokenWindow window_;
  const BlockLayout layout_;

  QueryGroup group_;
  AnswerView answer_;
  const KeyValueState<Element>* state_ = nullptr;  // null: no sealed tokens
  std::int64_t sealed_blocks_ = 0;
  std::int64_t blocks_ = 0;        // with the open one
  std::int64_t first_block_ = 0;   // that a query sees something of
  std::int64_t whole_blocks_ = 0;  // from here on sealed blocks are in all queries' windows
  ExactPlanSizes sizes_;

  std::vector<RowMask> open_rows_;        // per row if causal, else one: what it sees of the tail
  std::vector<std::int64_t> next_block_;  // per chain
  AlignedBuffer<float> sums_;             // [tiles][slots] SoftmaxSums of tile_rows_ rows
  AlignedBuffer<float> top_scores_;       // [tiles][split chains][tile rows, top_k]
  AlignedBuffer<std::int64_t> top_positions_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_EXACT_PLAN_H_
