#include "engine/kde/index/strip_products.h"

#include <algorithm>
#include <array>
#include <bit>

#include "engine/exact/attend_block.h"
#include "engine/gemm.h"
#include "engine/kde/index/leaf_query.h"
#include "engine/simd/maps.h"
#include "engine/simd/one_query.h"

namespace attnd::engine {
namespace {

using Readers = std::array<std::int64_t, kGemmMaxRows>;

// The rows that selected the branch.
std::int64_t FindReaders(const SpanView& span, std::int64_t branch, std::int64_t rows,
                         const Strip& strip, Readers& readers) {
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    readers[static_cast<std::size_t>(count)] = r;
    count += HasBit(strip.selected(r), span.first_branch + branch) ? 1 : 0;
  }
  return count;
}

// Whether so many rows selected a block's branches that all rows had better go through all of them,
// which takes no copies: what a row did not select does nothing to it.
bool IsDense(const SpanView& span, std::int64_t block, std::int64_t rows, const Strip& strip) {
  std::int64_t selected = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    selected += std::popcount(BlockBits(span, strip.selected(r), block));
  }
  return 2 * selected >= rows * kBlockBranches;
}

// Scores of the leaves of selected branches.
void ScoreBlock(const SpanView& span, std::int64_t block, const StripQueries& queries,
                const Strip& strip) {
  const SummaryTable& leaves = span.index->summaries();
  const std::int64_t d = leaves.layout().key_dim;
  float* scores = strip.scores + span.first_column;
  if (IsDense(span, block, queries.rows, strip)) {
    TileProduct(queries.rows, leaves.BlockColumns(block), d, queries.queries, d,
                leaves.means_t(block), kBlockTokens, /*accumulate=*/false,
                scores + block * kBlockTokens, strip.columns);
    return;
  }
  Readers readers;
  for (std::int64_t b = 0; b < kBlockBranches; ++b) {
    const std::int64_t branch = block * kBlockBranches + b;
    const std::int64_t count = FindReaders(span, branch, queries.rows, strip, readers);
    if (count == 0) continue;
    const std::int64_t first = branch * kBranchLeaves;
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(queries.queries + readers[static_cast<std::size_t>(i)] * d, d,
                  strip.gathered + i * d);
    }
    TileProduct(count, kBranchLeaves, d, strip.gathered, d, leaves.mean_key(first), kBlockTokens,
                /*accumulate=*/false, strip.weights, kBranchLeaves);
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(strip.weights + i * kBranchLeaves, kBranchLeaves,
                  scores + readers[static_cast<std::size_t>(i)] * strip.columns + first);
    }
  }
}

// So many leaves are one product: all of a block where rows look within all of its branches, else
// those of a branch, of which few rows have several in one block.
std::int64_t LeavesPerProduct(const SpanView& span) {
  return AlwaysLooksWithin(span.index->branches().count()) ? kBlockTokens : kBranchLeaves;
}

bool SelectedAny(const SpanView& span, const RowMask* words, std::int64_t first,
                 std::int64_t leaves) {
  const std::int64_t branch = first % kBlockTokens / kBranchLeaves;
  const std::uint32_t of_leaves = ((1U << (leaves / kBranchLeaves)) - 1U) << branch;
  return (BlockBits(span, words, first / kBlockTokens) & of_leaves) != 0;
}

// Columns of a product, without those beyond the last leaf.
std::int64_t Inner(const SpanView& span, std::int64_t first, std::int64_t leaves) {
  return std::min(leaves, span.index->summaries().BlockColumns(first / kBlockTokens));
}

float* WeightsOf(const SpanView& span, std::int64_t row, std::int64_t first, const Strip& strip) {
  return strip.scores + row * strip.columns + span.first_column + first;
}

// acc += weights * mean values of leaves [first, first + leaves). A product is the same whichever
// way it is done, so that the bits of a row do not depend on how many others selected a branch.
void AddProduct(const SpanView& span, std::int64_t first, std::int64_t leaves, std::int64_t rows,
                const Strip& strip, const SoftmaxSums& sums) {
  const std::int64_t columns = sums.padded_value_dim;
  const std::int64_t inner = Inner(span, first, leaves);
  const float* values = span.index->summaries().mean_value(first);
  Readers readers;
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    readers[static_cast<std::size_t>(count)] = r;
    count += SelectedAny(span, strip.selected(r), first, leaves) ? 1 : 0;
  }
  if (count == 0) return;
  if (2 * count >= rows) {
    for (std::int64_t r = 0; r < rows; ++r) {
      if (SelectedAny(span, strip.selected(r), first, leaves)) continue;
      std::fill_n(WeightsOf(span, r, first, strip), inner, 0.0F);
    }
    TileProduct(rows, columns, inner, strip.scores + span.first_column + first, strip.columns,
                values, columns, /*accumulate=*/true, sums.acc, columns);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t r = readers[static_cast<std::size_t>(i)];
    std::copy_n(WeightsOf(span, r, first, strip), inner, strip.weights + i * kBlockTokens);
    std::copy_n(sums.acc + r * columns, columns, strip.gathered + i * columns);
  }
  TileProduct(count, columns, inner, strip.weights, kBlockTokens, values, columns,
              /*accumulate=*/true, strip.gathered, columns);
  for (std::int64_t i = 0; i < count; ++i) {
    std::copy_n(strip.gathered + i * columns, columns,
                sums.acc + readers[static_cast<std::size_t>(i)] * columns);
  }
}

// The same for one row: weights of zero do nothing to a product.
void AddProductOneRow(const SpanView& span, std::int64_t first, std::int64_t leaves,
                      std::int64_t row, const Strip& strip, const SoftmaxSums& sums) {
  const std::int64_t columns = sums.padded_value_dim;
  const std::int64_t block = first / kBlockTokens;
  alignas(64) std::array<float, kBlockTokens> weights{};
  std::copy_n(WeightsOf(span, row, first, strip), Inner(span, first, leaves),
              weights.data() + first % kBlockTokens);
  WeightedSumOneQuery(weights.data(), span.index->summaries().mean_values(block), columns,
                      sums.acc + row * columns, nullptr);
}

}  // namespace

void ScoreLeaves(const SpanView& span, const StripQueries& queries, const Strip& strip) {
  const SummaryTable& leaves = span.index->summaries();
  const std::int64_t d = leaves.layout().key_dim;
  const bool few = queries.rows <= FewRows();
  for (std::int64_t block = 0; block * kBlockTokens < leaves.count(); ++block) {
    if (!few) ScoreBlock(span, block, queries, strip);
    for (std::int64_t r = 0; few && r < queries.rows; ++r) {
      if (BlockBits(span, strip.selected(r), block) == 0) continue;
      ScoresOneQuery(queries.queries + r * d, d, leaves.means_t(block),
                     strip.scores + r * strip.columns + span.first_column + block * kBlockTokens,
                     nullptr);
    }
  }
}

void AddBranchValues(const SpanView& span, std::int64_t rows, const Strip& strip,
                     const SoftmaxSums& sums) {
  const SummaryTable& branches = span.index->branches();
  const std::int64_t columns = sums.padded_value_dim;
  if (AlwaysLooksWithin(branches.count())) return;  // all weights are zero
  for (std::int64_t block = 0; block * kBlockTokens < branches.count(); ++block) {
    const float* weights = strip.branch_scores + span.first_branch + block * kBlockTokens;
    const float* values = branches.mean_values(block);
    if (rows <= FewRows()) {
      for (std::int64_t r = 0; r < rows; ++r) {
        WeightedSumOneQuery(weights + r * strip.branch_columns, values, columns,
                            sums.acc + r * columns, nullptr);
      }
    } else {
      TileProduct(rows, columns, branches.BlockColumns(block), weights, strip.branch_columns,
                  values, columns, /*accumulate=*/true, sums.acc, columns);
    }
  }
}

void AddLeafValues(const SpanView& span, std::int64_t rows, const Strip& strip,
                   const SoftmaxSums& sums) {
  const bool few = rows <= FewRows();
  const std::int64_t leaves = LeavesPerProduct(span);
  for (std::int64_t first = 0; first < span.index->leaves(); first += leaves) {
    if (!few) AddProduct(span, first, leaves, rows, strip, sums);
    for (std::int64_t r = 0; few && r < rows; ++r) {
      if (!SelectedAny(span, strip.selected(r), first, leaves)) continue;
      AddProductOneRow(span, first, leaves, r, strip, sums);
    }
  }
}

void FollowKeys(const LeafMetric& metric, const BlockLayout& layout, std::int64_t rows,
                const float* offsets, const float* slopes, const SoftmaxSums& sums,
                Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t columns = sums.padded_value_dim;
  float* followed = scratch.Take(PaddedTileRows(rows) * columns);
  FollowedValues(metric, layout, offsets, rows, followed);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* row = followed + r * columns;
    if (slopes[r] == 0.0F) continue;
    ScaleRow(row, slopes[r], row, columns);
    if (AllFinite(row, columns)) AddRow(row, sums.acc + r * columns, columns);
  }
}

}  // namespace attnd::engine
