#include "engine/kde/index/leaf_strip.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/exact/attend_block.h"
#include "engine/gemm.h"
#include "engine/kde/index/branch_summary.h"
#include "engine/kde/index/leaf_query.h"
#include "engine/simd/leaf_selection.h"
#include "engine/simd/maps.h"
#include "engine/simd/one_query.h"

namespace attnd::engine {
namespace {

constexpr float kMostErrorScale = 16.0F;

using Readers = std::array<std::int64_t, kGemmMaxRows>;

// Working memory of a strip. Scores become log masses and those become weights, in place.
struct Strip {
  std::int64_t columns = 0;
  std::int64_t branch_columns = 0;
  float* scores = nullptr;         // [padded rows, columns], of leaves in selected branches
  float* branch_scores = nullptr;  // [padded rows, branch columns]
  BranchMasks masks;
  float* offsets = nullptr;  // [metrics][padded rows, d_k]
  float* lengths = nullptr;  // [metrics][rows], of offsets
  float* squares = nullptr;  // [metrics][rows]
  float* slopes = nullptr;   // [metrics][rows]
  float* reach = nullptr;    // [branch columns] twice, for one row
  // The rows that selected a branch, side by side.
  float* gathered = nullptr;  // [padded rows, the larger of d_k and padded d_v]
  float* weights = nullptr;   // [padded rows, 64]

  RowMask* selected(std::int64_t row) const { return masks.rows + row * masks.stride; }
  // Those that the loosest threshold selects.
  RowMask* always(std::int64_t row) const { return selected(row) + branch_columns / kBlockTokens; }
};

// What a row keeps from its branches for its leaves.
struct RowPass {
  float max = 0.0F;
  float reference = 0.0F;  // of branches that are not always selected
  bool finite = true;
};

bool HasBit(const RowMask* words, std::int64_t bit) {
  return ((words[bit / kBlockTokens] >> (bit % kBlockTokens)) & 1U) != 0;
}

// The branches of one block of 64 leaves.
constexpr std::int64_t kBlockBranches = kBlockTokens / kBranchLeaves;

// Which of a block's branches a row selected: bits 0 to 3. `words`: the row's.
std::uint32_t BlockBits(const SpanView& span, const RowMask* words, std::int64_t block) {
  const std::int64_t first = span.first_branch + block * kBlockBranches;
  return static_cast<std::uint32_t>(words[first / kBlockTokens] >> (first % kBlockTokens)) & 0xFU;
}

// Calls f(first leaf, leaves) for each run of selected branches that are neighbours in a block.
template <typename Function>
void ForEachRun(const SpanView& span, const RowMask* words, const Function& f) {
  for (std::int64_t block = 0; block * kBlockTokens < span.index->leaves(); ++block) {
    for (std::uint32_t bits = BlockBits(span, words, block); bits != 0;) {
      const std::int64_t first = std::countr_zero(bits);
      const std::int64_t count = std::countr_one(bits >> first);
      bits &= ~(((1U << count) - 1U) << first);
      f(block * kBlockTokens + first * kBranchLeaves, count * kBranchLeaves);
    }
  }
}

// Which leaf holds the token at `position`; -1: none.
std::int64_t OwnLeaf(const SpanView& span, const std::int64_t* position) {
  if (position == nullptr) return -1;
  const std::int64_t token = *position - span.first_token;
  if (token < 0 || token >= span.index->tokens()) return -1;
  const std::int32_t place = span.index->place(token);
  return place < 0 ? -1 : place / kBlockTokens;
}

std::int64_t OwnLeafOf(const SpanView& span, const StripQueries& queries, std::int64_t row) {
  return OwnLeaf(span, queries.positions == nullptr ? nullptr : queries.positions + row);
}

std::int64_t SelectedKeys(const HeadIndex& index, const RowMask* selected) {
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < index.columns() / kBlockTokens; ++b) {
    for (RowMask rest = selected[b]; rest != 0; rest &= rest - 1) {
      keys += index.LeafKeys(b * kBlockTokens + std::countr_zero(rest));
    }
  }
  return keys;
}

LeafQuery QueryOf(const SpanView& span, const StripQueries& queries, const Strip& strip,
                  std::int64_t row, float max) {
  const auto at = static_cast<std::size_t>(span.TableRow(queries.threshold));
  return {.max = max,
          .square = strip.squares[span.metric * queries.rows + row],
          .length = strip.lengths[span.metric * queries.rows + row],
          .ratio = span.errors->mass_ratios[at],
          .bounds = queries.bounds};
}

void AddTotals(const SpanView& span, std::int64_t threshold, const LeafTotals& totals, float* slope,
               RowMasses& masses) {
  const auto at = static_cast<std::size_t>(span.TableRow(threshold));
  *slope += totals.slope;
  masses.far += totals.mass;
  masses.lower += totals.lower;
  masses.upper += totals.upper;
  const double unit =
      static_cast<double>(span.errors->spread) * static_cast<double>(span.errors->factors[at]);
  masses.square_error += unit * unit * static_cast<double>(totals.square_error);
}

// From scores against branches to which are selected and what the others weigh.
RowPass SelectBranches(std::span<const SpanView> spans, const StripQueries& queries,
                       std::int64_t row, const Strip& strip, RowMasses& masses) {
  float* scores = strip.branch_scores + row * strip.branch_columns;
  float* square_errors = strip.reach;
  float* lowers = strip.reach + strip.branch_columns;
  RowPass pass = {.max = -std::numeric_limits<float>::infinity()};
  for (const SpanView& span : spans) {
    const float max = LogMasses(span.index->branches().stats(), scores + span.first_branch);
    pass.finite = pass.finite && !std::isnan(max);
    pass.max = std::max(pass.max, max);
  }
  float reference = 0.0F;
  for (const SpanView& span : spans) {
    reference +=
        SumOfMasses(scores + span.first_branch, span.index->branches().stats().columns, pass.max);
  }
  masses.max = pass.max;
  for (const SpanView& span : spans) {
    const SummaryTable& branches = span.index->branches();
    const LeafStats stats = branches.stats();
    float* of_span = scores + span.first_branch;
    LeafQuery query = QueryOf(span, queries, strip, row, pass.max);
    pass.finite = pass.finite && std::isfinite(query.square) && std::isfinite(query.length);
    RowMask* always = strip.always(row) + span.first_branch / kBlockTokens;
    RowMask* selected = strip.selected(row) + span.first_branch / kBlockTokens;
    masses.summaries += branches.count();
    if (AlwaysLooksWithin(branches.count())) {
      always[0] = selected[0] = FirstRows(branches.count());
      std::fill_n(of_span, branches.columns(), 0.0F);
      continue;
    }
    PredictLeaves(stats, query, of_span, square_errors, lowers);
    std::copy_n(of_span, stats.columns, lowers);
    const float loosest = kBranchShare * Threshold(0) * reference;
    std::fill_n(always, branches.columns() / kBlockTokens, RowMask{0});
    for (std::int64_t b = 0; b < branches.count(); ++b) {
      if (square_errors[b] <= SquareThreshold(loosest)) continue;
      always[b / kBlockTokens] |= RowMask{1} << (b % kBlockTokens);
      lowers[b] = -std::numeric_limits<float>::infinity();
    }
    pass.reference += SumOfMasses(lowers, stats.columns, pass.max);
    query.threshold = kBranchShare * Threshold(queries.threshold) * reference /
                      ErrorScale(spans, span, queries.threshold);
    const std::int64_t own = OwnLeafOf(span, queries, row);
    const LeafTotals totals =
        SelectLeaves(stats, query, own < 0 ? -1 : own / kBranchLeaves, of_span, selected);
    // What a product with all of a block's mean values may touch.
    std::fill(of_span + stats.columns, of_span + branches.columns(), 0.0F);
    AddTotals(span, queries.threshold, totals, strip.slopes + span.metric * queries.rows + row,
              masses);
  }
  pass.finite = pass.finite && std::isfinite(reference) && std::isfinite(masses.far);
  return pass;
}

// From scores against the leaves of selected branches to which are selected and what the others
// weigh. False where a number is not finite or the row would read too much.
bool SelectRow(std::span<const SpanView> spans, const StripQueries& queries, std::int64_t row,
               const Strip& strip, const RowPass& pass, RowMask* selected, RowMasses& masses) {
  if (!pass.finite) return false;
  float* scores = strip.scores + row * strip.columns;
  bool finite = true;
  float reference = pass.reference;
  for (const SpanView& span : spans) {
    float* of_span = scores + span.first_column;
    ForEachRun(span, strip.selected(row), [&](std::int64_t first, std::int64_t leaves) {
      const LeafStats stats = span.index->summaries().stats(first, leaves);
      finite = !std::isnan(LogMasses(stats, of_span + first)) && finite;
    });
    ForEachRun(span, strip.always(row), [&](std::int64_t first, std::int64_t leaves) {
      reference += SumOfMasses(of_span + first, leaves, pass.max);
    });
  }
  std::int64_t keys = 0;
  for (const SpanView& span : spans) {
    const HeadIndex& index = *span.index;
    LeafQuery query = QueryOf(span, queries, strip, row, pass.max);
    query.threshold =
        Threshold(queries.threshold) * reference / ErrorScale(spans, span, queries.threshold);
    RowMask* of_span = selected + span.first_column / kBlockTokens;
    std::fill_n(of_span, index.columns() / kBlockTokens, RowMask{0});
    const std::int64_t own = OwnLeafOf(span, queries, row);
    ForEachRun(span, strip.selected(row), [&](std::int64_t first, std::int64_t leaves) {
      const bool has_own = own >= first && own < first + leaves;
      RowMask bits = 0;
      const LeafTotals totals =
          SelectLeaves(index.summaries().stats(first, leaves), query, has_own ? own - first : -1,
                       scores + span.first_column + first, &bits);
      of_span[first / kBlockTokens] |= bits << (first % kBlockTokens);
      AddTotals(span, queries.threshold, totals, strip.slopes + span.metric * queries.rows + row,
                masses);
      masses.summaries += std::min(leaves, index.leaves() - first);
    });
    masses.leaf_keys += SelectedKeys(index, of_span);
    keys += index.keys();
  }
  masses.complete = masses.leaf_keys == keys;
  return finite && std::isfinite(reference) && std::isfinite(masses.far) &&
         static_cast<double>(masses.leaf_keys) <=
             static_cast<double>(queries.exact_share) * static_cast<double>(keys);
}

void ReadEverything(std::span<const SpanView> spans, const StripQueries& queries, std::int64_t row,
                    const Strip& strip, RowMask* selected, RowMasses& masses) {
  SelectAll(spans, selected);
  std::fill_n(strip.branch_scores + row * strip.branch_columns, strip.branch_columns, 0.0F);
  std::fill_n(strip.selected(row), strip.branch_columns / kBlockTokens, RowMask{0});
  masses = {.summaries = masses.summaries};
  for (const SpanView& span : spans) {
    strip.slopes[span.metric * queries.rows + row] = 0.0F;
    masses.leaf_keys += span.index->keys();
  }
}

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

// acc += weights * mean values of branches.
void AddBranchValues(const SpanView& span, std::int64_t rows, const Strip& strip,
                     const SoftmaxSums& sums) {
  const SummaryTable& branches = span.index->branches();
  const std::int64_t columns = sums.padded_value_dim;
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

// A row's weights of a block's leaves; zeros in branches that it did not select.
float* BlockWeights(const SpanView& span, std::int64_t block, std::int64_t row,
                    const Strip& strip) {
  const std::uint32_t bits = BlockBits(span, strip.selected(row), block);
  float* weights = strip.scores + row * strip.columns + span.first_column + block * kBlockTokens;
  for (std::int64_t b = 0; b < kBlockBranches; ++b) {
    if (((bits >> b) & 1U) == 0) std::fill_n(weights + b * kBranchLeaves, kBranchLeaves, 0.0F);
  }
  return weights;
}

// acc += weights * mean values of the leaves of selected branches. A block is one product whichever
// way it is done, so that the bits of a row do not depend on how many others selected it.
void AddBlockValues(const SpanView& span, std::int64_t block, std::int64_t rows, const Strip& strip,
                    const SoftmaxSums& sums) {
  const SummaryTable& leaves = span.index->summaries();
  const std::int64_t columns = sums.padded_value_dim;
  const std::int64_t inner = leaves.BlockColumns(block);
  const float* values = leaves.mean_values(block);
  Readers readers;
  std::int64_t count = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    readers[static_cast<std::size_t>(count)] = r;
    count += BlockBits(span, strip.selected(r), block) != 0 ? 1 : 0;
  }
  if (count == 0) return;
  if (2 * count >= rows) {
    for (std::int64_t r = 0; r < rows; ++r) BlockWeights(span, block, r, strip);
    TileProduct(rows, columns, inner, strip.scores + span.first_column + block * kBlockTokens,
                strip.columns, values, columns, /*accumulate=*/true, sums.acc, columns);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t r = readers[static_cast<std::size_t>(i)];
    std::copy_n(BlockWeights(span, block, r, strip), kBlockTokens,
                strip.weights + i * kBlockTokens);
    std::copy_n(sums.acc + r * columns, columns, strip.gathered + i * columns);
  }
  TileProduct(count, columns, inner, strip.weights, kBlockTokens, values, columns,
              /*accumulate=*/true, strip.gathered, columns);
  for (std::int64_t i = 0; i < count; ++i) {
    std::copy_n(strip.gathered + i * columns, columns,
                sums.acc + readers[static_cast<std::size_t>(i)] * columns);
  }
}

void AddLeafValues(const SpanView& span, std::int64_t rows, const Strip& strip,
                   const SoftmaxSums& sums) {
  const std::int64_t columns = sums.padded_value_dim;
  const bool few = rows <= FewRows();
  for (std::int64_t block = 0; block * kBlockTokens < span.index->leaves(); ++block) {
    if (!few) AddBlockValues(span, block, rows, strip, sums);
    for (std::int64_t r = 0; few && r < rows; ++r) {
      if (BlockBits(span, strip.selected(r), block) == 0) continue;
      WeightedSumOneQuery(BlockWeights(span, block, r, strip),
                          span.index->summaries().mean_values(block), columns,
                          sums.acc + r * columns, nullptr);
    }
  }
}

// acc += slope * q^T G. Left out where the product leaves f32: it is a correction.
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

// Calls f(metric, its number) for each of the spans' different metrics; null is one.
template <typename Function>
void ForEachMetric(std::span<const SpanView> spans, const Function& f) {
  std::int64_t next = 0;
  for (const SpanView& span : spans) {
    if (span.metric == next) f(span.index->metric().get(), next++);
  }
}

}  // namespace

void ViewSpans(const IndexState& state, std::int64_t head, std::vector<SpanView>& views) {
  views.clear();
  std::int64_t metrics = 0;
  std::int64_t keys = 0;
  for (const auto& span : state.spans()) {
    const HeadIndex& index = *span->heads[static_cast<std::size_t>(head)];
    if (index.keys() == 0) continue;  // all masked
    const auto same = std::find_if(views.begin(), views.end(), [&](const SpanView& view) {
      return view.index->metric() == index.metric();
    });
    views.push_back({.index = &index,
                     .errors = &index.errors(),
                     .first_token = span->span.first,
                     .first_column = Columns(views),
                     .first_branch = BranchColumns(views),
                     .metric = same == views.end() ? metrics++ : same->metric});
    keys += index.keys();
  }
  for (SpanView& view : views) {
    for (std::int64_t asked = view.errors->keys; asked > 0 && 3 * asked < 2 * keys; asked *= 2) {
      view.table_shift += kThresholdsPerHalving;
    }
  }
}

float ErrorScale(std::span<const SpanView> spans, const SpanView& span, std::int64_t threshold) {
  const auto factor = [&](const SpanView& of) {
    return of.errors->factors[static_cast<std::size_t>(of.TableRow(threshold))];
  };
  const float scale = factor(span) / factor(spans.front());
  return scale > 1.0F ? std::min(scale, kMostErrorScale) : 1.0F;
}

std::int64_t Columns(std::span<const SpanView> spans) {
  return spans.empty() ? 0 : spans.back().first_column + spans.back().index->columns();
}

std::int64_t BranchColumns(std::span<const SpanView> spans) {
  return spans.empty() ? 0 : spans.back().first_branch + spans.back().index->branches().columns();
}

void SelectAll(std::span<const SpanView> spans, RowMask* selected) {
  for (const SpanView& span : spans) {
    for (std::int64_t block = 0; block * kBlockTokens < span.index->columns(); ++block) {
      selected[span.first_column / kBlockTokens + block] =
          FirstRows(span.index->leaves() - block * kBlockTokens);
    }
  }
}

void AttendSummaries(std::span<const SpanView> spans, const StripQueries& queries, SoftmaxSums sums,
                     RowMask* selected, std::int64_t selected_stride, const BranchMasks& branches,
                     RowMasses* masses, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const BlockLayout& layout = spans.front().index->layout();
  const std::int64_t padded = PaddedTileRows(queries.rows);
  std::int64_t metrics = 0;
  ForEachMetric(spans, [&](const LeafMetric*, std::int64_t) { ++metrics; });
  const std::int64_t offset_floats = padded * layout.key_dim;
  Strip strip;
  strip.columns = Columns(spans);
  strip.branch_columns = BranchColumns(spans);
  strip.masks = branches;
  strip.scores = scratch.Take(padded * strip.columns);
  strip.branch_scores = scratch.Take(padded * strip.branch_columns);
  strip.offsets = scratch.Take(metrics * offset_floats);
  strip.lengths = scratch.Take(metrics * queries.rows);
  strip.squares = scratch.Take(metrics * queries.rows);
  strip.slopes = scratch.Take(metrics * queries.rows);
  strip.reach = scratch.Take(2 * strip.branch_columns);
  strip.gathered = scratch.Take(padded * std::max(layout.key_dim, layout.padded_value_dim));
  strip.weights = scratch.Take(padded * kBlockTokens);
  std::fill_n(strip.slopes, metrics * queries.rows, 0.0F);
  ForEachMetric(spans, [&](const LeafMetric* metric, std::int64_t number) {
    float* offsets = strip.offsets + number * offset_floats;
    OffsetQueries(metric, layout.key_dim, queries.queries, queries.rows, offsets);
    for (std::int64_t r = 0; r < queries.rows; ++r) {
      strip.lengths[number * queries.rows + r] =
          QueryLength(offsets + r * layout.key_dim, layout.key_dim);
    }
    LeafSquares(metric, layout.key_dim, offsets, queries.rows,
                strip.squares + number * queries.rows, scratch);
  });
  for (const SpanView& span : spans) {
    ScoreSummaries(span.index->branches(), queries.queries, queries.rows, strip.branch_columns,
                   strip.branch_scores + span.first_branch);
  }
  std::array<RowPass, kGemmMaxRows> passes;
  for (std::int64_t r = 0; r < queries.rows; ++r) {
    masses[r] = {};
    RowPass& pass = passes[static_cast<std::size_t>(r)];
    pass = SelectBranches(spans, queries, r, strip, masses[r]);
    // Leaves are of no use to it.
    if (!pass.finite) {
      std::fill_n(strip.selected(r), strip.branch_columns / kBlockTokens, RowMask{0});
    }
  }
  for (const SpanView& span : spans) ScoreLeaves(span, queries, strip);
  sums.Clear();
  for (std::int64_t r = 0; r < queries.rows; ++r) {
    RowMask* of_row = selected + r * selected_stride;
    if (!SelectRow(spans, queries, r, strip, passes[static_cast<std::size_t>(r)], of_row,
                   masses[r])) {
      ReadEverything(spans, queries, r, strip, of_row, masses[r]);
    }
    if (masses[r].far > 0.0F) {
      sums.max[r] = masses[r].max;
      sums.sum[r] = masses[r].far;
    }
  }
  for (const SpanView& span : spans) AddBranchValues(span, queries.rows, strip, sums);
  for (const SpanView& span : spans) AddLeafValues(span, queries.rows, strip, sums);
  ForEachMetric(spans, [&](const LeafMetric* metric, std::int64_t number) {
    if (metric == nullptr) return;
    FollowKeys(*metric, layout, queries.rows, strip.offsets + number * offset_floats,
               strip.slopes + number * queries.rows, sums, scratch);
  });
}

}  // namespace attnd::engine
