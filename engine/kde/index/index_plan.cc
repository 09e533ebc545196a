#include "engine/kde/index/index_plan.h"

#include <algorithm>
#include <array>

#include "engine/exact/open_block.h"
#include "engine/gemm.h"
#include "engine/kde/index/branch_summary.h"
#include "engine/kde/index/leaf_readers.h"
#include "engine/kde/index/upkeep_schedule.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// Of a tile's rows a few read each leaf, and more of more rows: 65,536 keys, tiles of 768 and 3,072
// rows: 6.0 and 5.2 us a row for leaves; 131,072 keys, 8,192 rows in 8 and in 4 tiles: 48 and 52
// times the speed of reading all keys. Where there are few rows up to four cores may share a
// head's.
constexpr std::int64_t kLeastTileRows = 4 * kGemmMaxRows;
constexpr std::int64_t kMostTileRows = 16 * kGemmMaxRows;
constexpr std::int64_t kWantedTiles = 4;

// To ask a row which leaves it reads.
constexpr std::int64_t kAskFlops = 200;

// A quantum ends when it has done this much: about half a millisecond of one core.
constexpr std::int64_t kQuantumFlops = 40'000'000;

// A strip is one piece of work. Of many rows some select a branch, and products want many.
constexpr std::int64_t kStripFlops = 3 * kQuantumFlops;

// A block that comes from memory takes as long as if this many rows read it.
constexpr std::int64_t kMemoryRows = 12;

// Of so many branches a row selects one, or looks at its leaves alone.
constexpr std::int64_t kSelectedBranches = 3;

// Rows are padded for products, and strips of a tile with more than one.
constexpr std::int64_t kSparseRows = 64;

template <typename T>
void Grow(AlignedBuffer<T>& buffer, std::int64_t count) {
  if (buffer.size() < count) buffer = AlignedBuffer<T>::Uninitialized(count);
}

std::int64_t CeilDivide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::int64_t IndexPlan::TileRows(const LayerShape& shape, std::int64_t head_rows) {
  // A block that all rows read cannot be cut: two quanta at most.
  const std::int64_t row_flops = 2 * BlockLayout(shape).elements();
  const std::int64_t most = std::clamp(2 * kQuantumFlops / row_flops / kGemmMaxRows * kGemmMaxRows,
                                       kGemmMaxRows, kMostTileRows);
  const std::int64_t wanted = CeilDivide(head_rows * shape.kv_heads, kWantedTiles);
  const std::int64_t rows =
      std::clamp(RoundUp(wanted, kGemmMaxRows), std::min(kLeastTileRows, most), most);
  return std::min(rows, std::max(head_rows, std::int64_t{1}));
}

std::int64_t IndexPlan::Bytes(const LayerShape& shape, std::int64_t tokens, std::int64_t queries,
                              std::int64_t top_k) {
  const BlockLayout layout(shape);
  const std::int64_t head_rows = queries * shape.group_size();
  const std::int64_t tile_rows = TileRows(shape, head_rows);
  const std::int64_t tiles = shape.kv_heads * CeilDivide(head_rows, tile_rows);
  const std::int64_t rows = tiles * (PaddedTileRows(tile_rows) + kSparseRows);
  // Every span's leaves are padded to a multiple of 64; so are its branches.
  const std::int64_t spans = kEpochSpans * (tokens / kEpochTokens + 1);
  const std::int64_t words = tokens / (kBlockTokens * kBlockTokens) + spans +
                             2 * (tokens / (kBlockTokens * kBlockTokens * kBranchLeaves) + spans);
  const std::int64_t row = (shape.key_dim + SoftmaxSums::RowFloats(layout.padded_value_dim)) *
                               static_cast<std::int64_t>(sizeof(float)) +
                           words * static_cast<std::int64_t>(sizeof(RowMask)) +
                           static_cast<std::int64_t>(sizeof(RowMasses)) +
                           top_k * static_cast<std::int64_t>(sizeof(float) + sizeof(std::int64_t));
  const std::int64_t audits = tiles * MostAudits(tile_rows);
  return rows * row + audits * PlanAudits::RowBytes(layout, words) +
         head_rows * static_cast<std::int64_t>(sizeof(RowMask));
}

// The largest threshold whose error, as the spans' own keys saw it, is within the target; the
// smallest whose keys are within the budget.
void IndexPlan::SetThreshold() {
  Accuracy asked = group_.accuracy;
  if (asked.target_error == 0.0 && asked.max_keys == 0) asked = accuracy_;
  threshold_ = kDefaultThreshold;
  if (asked.target_error == 0.0 && asked.max_keys == 0) return;
  double tokens = 0.0;
  for (const SpanView& span : spans_.front()) tokens += static_cast<double>(span.index->tokens());
  std::int64_t for_target = asked.target_error > 0.0 ? kThresholds - 1 : kDefaultThreshold;
  std::int64_t for_budget = 0;
  for (std::int64_t i = kThresholds - 1; i >= 0; --i) {
    double error = 0.0;  // of the worst head
    double keys = 0.0;
    for (const std::vector<SpanView>& spans : spans_) {
      double of_head = 0.0;
      double read = 0.0;
      for (const SpanView& span : spans) {
        const auto at = static_cast<std::size_t>(span.TableRow(i));
        of_head += static_cast<double>(span.errors->errors[at]) *
                   static_cast<double>(span.index->tokens()) / tokens;
        read += static_cast<double>(span.errors->key_shares[at]) *
                static_cast<double>(span.index->keys());
      }
      error = std::max(error, of_head);
      keys = std::max(keys, read);
    }
    if (error <= asked.target_error) for_target = i;
    if (keys <= static_cast<double>(asked.max_keys)) for_budget = std::max(for_budget, i);
  }
  threshold_ = for_target;
  if (asked.max_keys > 0) {
    threshold_ = asked.target_error > 0.0 ? std::min(for_target, for_budget) : for_budget;
  }
}

void IndexPlan::Reset(const QueryGroup& group, const AnswerView& answer) {
  group_ = group;
  answer_ = answer;
  state_ = static_cast<const IndexState*>(group.sealed);
  spans_.resize(static_cast<std::size_t>(state_ == nullptr ? 0 : shape_.kv_heads));
  for (std::size_t head = 0; head < spans_.size(); ++head) {
    ViewSpans(*state_, static_cast<std::int64_t>(head), spans_[head]);
  }
  const bool spans = state_ != nullptr && !state_->spans().empty();
  words_ = spans ? Columns(spans_.front()) / kBlockTokens : 0;
  branch_words_ = spans ? BranchColumns(spans_.front()) / kBlockTokens : 0;
  use_index_ = words_ > 0 && group.sealed_tokens >= rule_.least_tokens;
  if (use_index_) {
    SetThreshold();
    audit_kind_ = {threshold_, group.causal || group.positions != nullptr};
    state_->audits().Read(audit_kind_, factors_);
    spreads_.clear();
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
      spreads_.push_back(state_->Spread(head));
    }
  }
  blocks_ = (state_ == nullptr ? 0 : static_cast<std::int64_t>(state_->raw_blocks().size())) +
            (group.tail.rows > 0 ? 1 : 0);
  head_rows_ = group.count * shape_.group_size();
  tile_rows_ = TileRows(shape_, head_rows_);
  head_tiles_ = CeilDivide(head_rows_, tile_rows_);
  padded_rows_ = PaddedTileRows(tile_rows_) + kSparseRows;
  const std::int64_t tiles = shape_.kv_heads * head_tiles_;
  chains_.assign(static_cast<std::size_t>(tiles), Chain{});
  Grow(rows_,
       tiles * padded_rows_ * (shape_.key_dim + SoftmaxSums::RowFloats(layout_.padded_value_dim)));
  Grow(selected_, tiles * padded_rows_ * row_words());
  masses_.resize(static_cast<std::size_t>(tiles * padded_rows_));
  audits_.Reset(tiles, use_index_ ? MostAudits(tile_rows_) : 0, row_words());
  if (answer.top_k > 0) {
    Grow(top_scores_, tiles * padded_rows_ * answer.top_k);
    Grow(top_positions_, tiles * padded_rows_ * answer.top_k);
  }
  open_rows_.clear();
  for (std::int64_t row = 0; row < (group.causal ? head_rows_ : 1); ++row) {
    const std::int64_t cut =
        std::clamp(group.cut(row / shape_.group_size()), std::int64_t{0}, group.tail.rows);
    open_rows_.push_back(group.tail.valid & FirstRows(cut));
  }
}

IndexPlan::Tile IndexPlan::TileOf(std::int64_t chain) {
  const std::int64_t first = chain % head_tiles_ * tile_rows_;
  const RowTile rows = {.kv_head = chain / head_tiles_,
                        .first = first,
                        .rows = std::min(head_rows_ - first, tile_rows_),
                        .group_size = shape_.group_size(),
                        .query_heads = shape_.query_heads};
  float* memory =
      rows_.data() +
      chain * padded_rows_ * (shape_.key_dim + SoftmaxSums::RowFloats(layout_.padded_value_dim));
  const std::int64_t top = chain * padded_rows_ * answer_.top_k;
  return {.rows = rows,
          .queries = memory,
          .sums = {memory + padded_rows_ * shape_.key_dim, padded_rows_, layout_.padded_value_dim},
          .selected = selected_.data() + chain * padded_rows_ * row_words(),
          .masses = masses_.data() + chain * padded_rows_,
          .top = {rows.rows, answer_.top_k, top_scores_.data() + top, top_positions_.data() + top}};
}

void IndexPlan::PackQueries(const Tile& tile) const {
  const std::int64_t d = shape_.key_dim;
  for (std::int64_t r = 0; r < tile.rows.rows; ++r) {
    ScaleRow(group_.queries + tile.rows.tensor_row(r) * d, shape_.scale, tile.queries + r * d, d);
  }
  std::fill(tile.queries + tile.rows.rows * d, tile.queries + padded_rows_ * d, 0.0F);
}

std::int64_t IndexPlan::SummaryFlops() const {
  return (branch_words_ + words_ / kSelectedBranches) * kBlockTokens *
         (2 * (shape_.key_dim + layout_.padded_value_dim) + kSelectFlops);
}

// One strip. Rows per strip are what fits a quantum, as whole products.
std::int64_t IndexPlan::Summarize(Tile& tile, Chain& chain, Scratch& scratch) {
  if (chain.next == 0) {
    PackQueries(tile);
    tile.sums.Clear();
    if (answer_.top_k > 0) tile.top.Clear();
  }
  const auto head = static_cast<std::size_t>(tile.rows.kv_head);
  if (!use_index_) {
    const std::int64_t keys = state_ == nullptr || spans_[head].empty() ? 0 : [&] {
      std::int64_t sum = 0;
      for (const SpanView& span : spans_[head]) sum += span.index->keys();
      return sum;
    }();
    for (std::int64_t r = 0; r < tile.rows.rows; ++r) {
      if (words_ > 0) SelectAll(spans_[head], tile.selected + r * row_words());
      tile.masses[r] = {.leaf_keys = keys};
    }
    chain.next = tile.rows.rows;
    return tile.rows.rows * (words_ + 1);
  }
  const std::int64_t row_flops = SummaryFlops();
  std::int64_t most = kGemmRowBuckets[0];
  for (const std::int64_t bucket : kGemmRowBuckets) {
    if (bucket * row_flops <= kStripFlops) most = bucket;
  }
  const std::int64_t first = chain.next;
  const std::int64_t rows = std::min(most, tile.rows.rows - first);
  const Scratch::Frame frame(scratch);
  std::array<std::int64_t, kGemmMaxRows> positions;
  const bool known = group_.causal || group_.positions != nullptr;
  for (std::int64_t r = 0; known && r < rows; ++r) {
    positions[static_cast<std::size_t>(r)] = group_.position(tile.rows.query(first + r));
  }
  const StripQueries queries = {.rows = rows,
                                .queries = tile.queries + first * shape_.key_dim,
                                .positions = known ? positions.data() : nullptr,
                                .threshold = threshold_,
                                .exact_share = rule_.share,
                                .bounds = answer_.estimates.log_normalizer_bounds != nullptr};
  SoftmaxSums sums = tile.sums;
  sums.rows = rows;
  sums.acc += first * sums.padded_value_dim;
  sums.max += first;
  sums.sum += first;
  RowMask* selected = tile.selected + first * row_words();
  AttendSummaries(spans_[head], queries, sums, selected, row_words(),
                  {selected + words_, row_words()}, tile.masses + first, scratch);
  chain.next += rows;
  return rows * row_flops;
}

std::int64_t IndexPlan::AttendRaw(Tile& tile, Chain& chain, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t index = chain.next++;
  const bool open = group_.tail.rows > 0 && index == blocks_ - 1;
  const TileWork work = {.rows = tile.rows.rows,
                         .key_dim = shape_.key_dim,
                         .queries = tile.queries,
                         .scores = scratch.Take(padded_rows_ * kBlockTokens),
                         .corrections = scratch.Take(padded_rows_),
                         .sums = tile.sums,
                         .top = answer_.top_k > 0 ? &tile.top : nullptr};
  if (!open) {
    const RawBlock& block = *state_->raw_blocks()[static_cast<std::size_t>(index)];
    const BlockView<float> view = block.view(layout_, tile.rows.kv_head);
    AttendBlock(view, BlockView<float>{}, {&view.valid, 0}, block.first, work);
  } else {
    const VisibleKeys visible = {open_rows_.data() + (group_.causal ? tile.rows.first : 0),
                                 group_.causal ? 1 : 0};
    AttendBlock(OpenBlock(group_.tail, shape_, tile.rows.kv_head, scratch), BlockView<float>{},
                visible, group_.sealed_tokens, work);
  }
  return 2 * tile.rows.rows * layout_.elements();
}

// The leaves of one word of selections, as many as a quantum has time for.
std::int64_t IndexPlan::AttendLeaves(Tile& tile, Chain& chain, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t word = chain.next / kBlockTokens;
  const LeafReaders readers(tile.selected + word, row_words(), tile.rows.rows,
                            chain.next % kBlockTokens, scratch);
  const std::vector<SpanView>& spans = spans_[static_cast<std::size_t>(tile.rows.kv_head)];
  const SpanView& span = *std::prev(std::upper_bound(
      spans.begin(), spans.end(), chain.next,
      [](std::int64_t value, const SpanView& view) { return value < view.first_column; }));
  std::int64_t work = kAskFlops * tile.rows.rows;
  const auto skip_unread = [&] {
    while (chain.next < (word + 1) * kBlockTokens &&
           readers.of(chain.next % kBlockTokens).empty()) {
      ++chain.next;
    }
    return chain.next < (word + 1) * kBlockTokens;
  };
  bool more = skip_unread();
  while (more && work < kQuantumFlops) {
    const std::int64_t column = chain.next++;
    more = skip_unread();
    work += AttendLeaf(tile, span, column - span.first_column, readers.of(column % kBlockTokens),
                       more ? chain.next - span.first_column : -1, scratch);
  }
  return work;
}

// The rows that selected the leaf read it, side by side; the next one is fetched meanwhile.
std::int64_t IndexPlan::AttendLeaf(Tile& tile, const SpanView& span, std::int64_t leaf,
                                   std::span<const std::int32_t> readers, std::int64_t next,
                                   Scratch& scratch) {
  const std::int64_t count = std::ssize(readers);
  const Scratch::Frame frame(scratch);
  const std::int64_t d = shape_.key_dim;
  const std::int64_t columns = layout_.padded_value_dim;
  const std::int64_t padded = PaddedTileRows(count);
  float* queries = scratch.Take(padded * d);
  const SoftmaxSums sums(scratch.Take(padded * SoftmaxSums::RowFloats(columns)), padded, columns);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t r = readers[static_cast<std::size_t>(i)];
    std::copy_n(tile.queries + r * d, d, queries + i * d);
    std::copy_n(tile.sums.acc + r * columns, columns, sums.acc + i * columns);
    sums.max[i] = tile.sums.max[r];
    sums.sum[i] = tile.sums.sum[r];
  }
  TopKeys top = tile.top;
  top.lists = readers.data();
  top.places = span.index->tokens_of(leaf);
  const TileWork work = {.rows = count,
                         .key_dim = d,
                         .queries = queries,
                         .scores = scratch.Take(padded * kBlockTokens),
                         .corrections = scratch.Take(padded),
                         .sums = sums,
                         .top = top.k > 0 ? &top : nullptr};
  const BlockView<float> block = span.index->leaf(leaf);
  AttendBlock(block, next < 0 ? BlockView<float>{} : span.index->leaf(next), {&block.valid, 0},
              span.first_token, work);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t r = readers[static_cast<std::size_t>(i)];
    std::copy_n(sums.acc + i * columns, columns, tile.sums.acc + r * columns);
    tile.sums.max[r] = sums.max[i];
    tile.sums.sum[r] = sums.sum[i];
  }
  return 2 * std::max(count, kMemoryRows) * layout_.elements();
}

bool IndexPlan::Run(std::int64_t chain_index, Scratch& scratch) {
  Chain& chain = chains_[static_cast<std::size_t>(chain_index)];
  Tile tile = TileOf(chain_index);
  for (std::int64_t work = 0; work < kQuantumFlops;) {
    switch (chain.phase) {
      case Phase::kSummaries:
        work += Summarize(tile, chain, scratch);
        if (chain.next < tile.rows.rows) break;
        if (use_index_) ChooseAudits(tile, chain_index);
        chain = {Phase::kBlocks, 0};
        break;
      case Phase::kBlocks:
        if (chain.next >= blocks_) {
          chain = {Phase::kLeaves, 0};
          break;
        }
        work += AttendRaw(tile, chain, scratch);
        break;
      case Phase::kLeaves:
        if (chain.next < words_ * kBlockTokens) {
          work += AttendLeaves(tile, chain, scratch);
          break;
        }
        Write(tile);
        if (audits_.count(chain_index) == 0) return true;
        chain = {Phase::kAudits, 0};
        break;
      case Phase::kAudits:
        if (chain.next < words_ * kBlockTokens) {
          Tile audited = AuditTileOf(tile, chain_index);
          work += AttendLeaves(audited, chain, scratch);
          break;
        }
        JudgeAudits(tile, chain_index);
        return true;
    }
  }
  return false;
}

}  // namespace attnd::engine
