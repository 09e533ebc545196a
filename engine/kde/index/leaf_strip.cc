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
#include "engine/kde/index/strip.h"
#include "engine/kde/index/strip_products.h"
#include "engine/simd/leaf_selection.h"

namespace attnd::engine {
namespace {

// What a row keeps from its branches for its leaves.
struct RowPass {
  float max = 0.0F;
  float reference = 0.0F;  // of branches that are not always selected
  bool finite = true;
};

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
  float* predicted = strip.reach + strip.branch_columns;
  float* lowers = strip.reach + 2 * strip.branch_columns;
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
    PredictLeaves(stats, query, of_span, square_errors, predicted);
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
    const LeafTotals totals = SelectPredicted(stats, query, own < 0 ? -1 : own / kBranchLeaves,
                                              square_errors, predicted, of_span, selected);
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

// Calls f(metric, its number) for each of the spans' different metrics; null is one.
template <typename Function>
void ForEachMetric(std::span<const SpanView> spans, const Function& f) {
  std::int64_t next = 0;
  for (const SpanView& span : spans) {
    if (span.metric == next) f(span.index->metric().get(), next++);
  }
}

}  // namespace

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
  strip.reach = scratch.Take(3 * strip.branch_columns);
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
