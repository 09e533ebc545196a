#include "engine/exact/exact_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "engine/exact/open_block.h"
#include "engine/gemm.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// A quantum ends when it has done this much: about half a millisecond of one core at 100 GFLOP/s
// and 16 GB/s.
constexpr std::int64_t kQuantumFlops = 50'000'000;
constexpr std::int64_t kQuantumBytes = 8 << 20;

// Where scores ascend every key goes to the front of a row's list of top keys and moves all others,
// a nanosecond each: 192 rows and lists of 64 take a millisecond per block, which a quantum of
// short keys would otherwise repeat a hundred times.
constexpr std::int64_t kFlopsPerTopMove = 100;

// Splits become chains of their own while there are few tiles and while Finish(), which is one
// quantum, has little to merge: the sums of all splits, 8 MB in about a millisecond, and their
// lists of top keys. Merging two lists of k may move k^2 / 2 entries, a million of them in about a
// millisecond; without a limit, short value rows would allow 10^5 such merges.
constexpr std::int64_t kMaxTilesToSplit = 64;
constexpr std::int64_t kMaxSplitSums = 2 << 20;  // floats
constexpr std::int64_t kMaxTopMoves = 1 << 20;

std::int64_t CeilDivide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

template <typename T>
void Grow(AlignedBuffer<T>& buffer, std::int64_t count) {
  if (buffer.size() < count) buffer = AlignedBuffer<T>::Uninitialized(count);
}

}  // namespace

ExactPlanSizes::ExactPlanSizes(const LayerShape& shape, std::int64_t split_count,
                               std::int64_t queries, std::int64_t top_k)
    : splits(split_count),
      head_rows(queries * shape.group_size()),
      tile_rows(PaddedTileRows(std::min(head_rows, kGemmMaxRows))),
      head_tiles(CeilDivide(head_rows, kGemmMaxRows)),
      tiles(shape.kv_heads * head_tiles),
      slot_floats(tile_rows * SoftmaxSums::RowFloats(BlockLayout(shape).padded_value_dim)) {
  const std::int64_t merges = tiles * splits * std::min(head_rows, kGemmMaxRows);  // of one row
  const bool split = tiles <= kMaxTilesToSplit && tiles * splits * slot_floats <= kMaxSplitSums &&
                     merges * top_k * top_k / 2 <= kMaxTopMoves;
  split_chains = split ? splits : 1;
  slots = split_chains == splits ? splits : 2;
}

std::int64_t ExactPlanSizes::bytes(std::int64_t top_k) const {
  const std::int64_t sums = tiles * slots * slot_floats * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t places = chains() * tile_rows * top_k;
  return sums + places * static_cast<std::int64_t>(sizeof(float) + sizeof(std::int64_t)) +
         (chains() + head_rows) * static_cast<std::int64_t>(sizeof(std::int64_t));
}

std::int64_t MostSplits(std::int64_t tokens, TokenWindow window) {
  const std::int64_t blocks = CeilDivide(tokens, kBlockTokens);
  const std::int64_t all = std::max(CeilDivide(blocks, kSplitBlocks), std::int64_t{1});
  // A window may begin anywhere in its first split.
  return window.tokens == 0 ? all : std::min(all, CeilDivide(window.blocks(), kSplitBlocks) + 1);
}

template <typename Element>
std::int64_t ExactPlan<Element>::Position(std::int64_t query) const {
  return group_.sealed_tokens + std::clamp(group_.cut(query), std::int64_t{0}, group_.tail.rows);
}

template <typename Element>
void ExactPlan<Element>::Reset(const QueryGroup& group, const AnswerView& answer) {
  group_ = group;
  answer_ = answer;
  sealed_blocks_ = group.sealed_tokens / kBlockTokens;
  state_ = sealed_blocks_ == 0 ? nullptr : static_cast<const KeyValueState<Element>*>(group.sealed);
  blocks_ = sealed_blocks_ + (group.tail.rows > 0 ? 1 : 0);
  // Positions ascend.
  const std::int64_t last = std::max(group.count - 1, std::int64_t{0});
  first_block_ = window_.First(Position(0)) / kBlockTokens;
  whole_blocks_ = CeilDivide(window_.First(Position(last)), kBlockTokens);
  const std::int64_t splits = CeilDivide(blocks_, kSplitBlocks) - first_block_ / kSplitBlocks;
  sizes_ = ExactPlanSizes(shape_, std::max(splits, std::int64_t{1}), group.count, answer.top_k);
  Grow(sums_, sizes_.tiles * sizes_.slots * sizes_.slot_floats);
  if (answer.top_k > 0) {
    Grow(top_scores_, chains() * sizes_.tile_rows * answer.top_k);
    Grow(top_positions_, chains() * sizes_.tile_rows * answer.top_k);
  }
  next_block_.resize(static_cast<std::size_t>(chains()));
  for (std::int64_t chain = 0; chain < chains(); ++chain) {
    next_block_[static_cast<std::size_t>(chain)] = FirstBlock(chain % sizes_.split_chains);
  }
  open_rows_.clear();
  for (std::int64_t row = 0; row < (group.causal ? sizes_.head_rows : 1); ++row) {
    const std::int64_t position = Position(row / shape_.group_size());
    open_rows_.push_back(group.tail.valid & FirstRows(position - group.sealed_tokens) &
                         window_.Rows(position, group.sealed_tokens));
  }
}

template <typename Element>
SoftmaxSums ExactPlan<Element>::Sums(std::int64_t tile, std::int64_t slot) {
  return {sums_.data() + (tile * sizes_.slots + slot) * sizes_.slot_floats,
          PaddedTileRows(Tile(tile).rows), layout_.padded_value_dim};
}

template <typename Element>
TopKeys ExactPlan<Element>::Top(std::int64_t tile, std::int64_t split_chain) {
  const std::int64_t offset =
      (tile * sizes_.split_chains + split_chain) * sizes_.tile_rows * answer_.top_k;
  return {Tile(tile).rows, answer_.top_k, top_scores_.data() + offset,
          top_positions_.data() + offset};
}

template <typename Element>
RowTile ExactPlan<Element>::Tile(std::int64_t tile) const {
  const std::int64_t first = tile % sizes_.head_tiles * kGemmMaxRows;
  return {.kv_head = tile / sizes_.head_tiles,
          .first = first,
          .rows = std::min(sizes_.head_rows - first, kGemmMaxRows),
          .group_size = shape_.group_size(),
          .query_heads = shape_.query_heads};
}

template <typename Element>
void ExactPlan<Element>::PackQueries(const RowTile& tile, float* packed) const {
  const std::int64_t d = shape_.key_dim;
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    ScaleRow(group_.queries + tile.tensor_row(r) * d, shape_.scale, packed + r * d, d);
  }
  std::fill(packed + tile.rows * d, packed + PaddedTileRows(tile.rows) * d, 0.0F);
}

template <typename Element>
std::int64_t ExactPlan<Element>::FirstBlock(std::int64_t split_chain) const {
  const std::int64_t split = first_block_ / kSplitBlocks + split_chain;
  return std::max(split * kSplitBlocks, first_block_);
}

template <typename Element>
void ExactPlan<Element>::AttendSealedBlock(const RowTile& tile, std::int64_t index,
                                           const TileWork& work) const {
  const BlockView<Element> block = state_->block(tile.kv_head, index);
  const BlockView<Element> following =
      index + 1 < sealed_blocks_ ? state_->block(tile.kv_head, index + 1) : BlockView<Element>{};
  const std::int64_t position = index * kBlockTokens;
  if (index >= whole_blocks_) {
    AttendBlock(block, following, {&block.valid, 0}, position, work);
    return;
  }
  std::array<RowMask, kGemmMaxRows> visible;
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    visible[static_cast<std::size_t>(row)] =
        block.valid & window_.Rows(Position(tile.query(row)), position);
  }
  AttendBlock(block, following, {visible.data(), 1}, position, work);
}

template <typename Element>
void ExactPlan<Element>::AttendOpenBlock(const RowTile& tile, const TileWork& work,
                                         Scratch& scratch) const {
  const Scratch::Frame frame(scratch);
  const VisibleKeys visible = {open_rows_.data() + (group_.causal ? tile.first : 0),
                               group_.causal ? 1 : 0};
  AttendBlock(OpenBlock(group_.tail, shape_, tile.kv_head, scratch), BlockView<float>{}, visible,
              sealed_blocks_ * kBlockTokens, work);
}

template <typename Element>
std::int64_t ExactPlan<Element>::BlocksPerQuantum() const {
  const std::int64_t elements = layout_.elements();
  const std::int64_t top_moves = kBlockTokens * answer_.top_k;  // per row, at most
  const std::int64_t flops = sizes_.tile_rows * (2 * elements + kFlopsPerTopMove * top_moves);
  const std::int64_t bytes = elements * static_cast<std::int64_t>(sizeof(Element));
  return std::max(std::min(kQuantumFlops / flops, kQuantumBytes / bytes), std::int64_t{1});
}

template <typename Element>
void ExactPlan<Element>::WriteRows(const RowTile& tile, const SoftmaxSums& sums,
                                   const TopKeys& top) const {
  WriteAnswerRows(sums, tile, shape_.value_dim, answer_);
  if (answer_.top_k > 0) WriteTopKeys(top, sums, tile, shape_.value_dim, answer_);
}

template <typename Element>
bool ExactPlan<Element>::Run(std::int64_t chain, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t tile_index = chain / sizes_.split_chains;
  const std::int64_t split_chain = chain % sizes_.split_chains;
  const bool one_split = sizes_.split_chains == sizes_.splits;
  const std::int64_t first = FirstBlock(split_chain);
  const std::int64_t split_end = (first / kSplitBlocks + 1) * kSplitBlocks;
  const std::int64_t end = one_split ? std::min(split_end, blocks_) : blocks_;

  const RowTile tile = Tile(tile_index);
  SoftmaxSums sums = Sums(tile_index, one_split ? split_chain : 1);
  SoftmaxSums total = Sums(tile_index, one_split ? split_chain : 0);
  TopKeys top = Top(tile_index, split_chain);
  float* queries = scratch.Take(sums.rows * shape_.key_dim);
  PackQueries(tile, queries);
  const TileWork work = {.rows = tile.rows,
                         .key_dim = shape_.key_dim,
                         .queries = queries,
                         .scores = scratch.Take(sums.rows * kBlockTokens),
                         .corrections = scratch.Take(sums.rows),
                         .widened = scratch.Take(layout_.elements()),
                         .sums = sums,
                         .top = answer_.top_k > 0 ? &top : nullptr};

  std::int64_t& next = next_block_[static_cast<std::size_t>(chain)];
  if (next == first) {
    total.Clear();
    top.Clear();
  }
  const std::int64_t stop = std::min(next + BlocksPerQuantum(), end);
  while (next < stop) {
    if (next == first || next % kSplitBlocks == 0) sums.Clear();
    if (next < sealed_blocks_) {
      AttendSealedBlock(tile, next, work);
    } else {
      AttendOpenBlock(tile, work, scratch);
    }
    ++next;
    if (!one_split && (next % kSplitBlocks == 0 || next == end)) {
      MergeSums(sums, total, scratch);
    }
  }
  if (next < end) return false;
  if (sizes_.split_chains == 1) WriteRows(tile, total, top);
  return true;
}

template <typename Element>
void ExactPlan<Element>::Finish(Scratch& scratch) {
  if (sizes_.split_chains == 1) return;
  for (std::int64_t tile = 0; tile < sizes_.tiles; ++tile) {
    SoftmaxSums sums = Sums(tile, 0);
    TopKeys top = Top(tile, 0);
    for (std::int64_t slot = 1; slot < sizes_.slots; ++slot) {
      const SoftmaxSums later = Sums(tile, slot);
      MergeSums(later, sums, scratch);
      if (answer_.top_k > 0) top.OfferAll(Top(tile, slot));
    }
    WriteRows(Tile(tile), sums, top);
  }
}

template class ExactPlan<float>;
template class ExactPlan<std::uint16_t>;

}  // namespace attnd::engine
