#include "engine/kde/leaf_strip.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/exact/attend_block.h"
#include "engine/kde/leaf_query.h"
#include "engine/simd/leaf_selection.h"
#include "engine/simd/maps.h"
#include "engine/simd/one_query.h"

namespace attnd::engine {
namespace {

// Working memory of a strip.
struct Strip {
  std::int64_t columns = 0;
  std::int64_t padded_rows = 0;
  float* scores = nullptr;   // [padded rows, columns]: scores, log masses, weights in turn
  float* squares = nullptr;  // [spans][padded rows]
  float* slopes = nullptr;   // [spans][rows]
};

// Which leaf holds the token at `position`; -1: none.
std::int64_t OwnLeaf(const SpanView& span, const std::int64_t* position) {
  if (position == nullptr) return -1;
  const std::int64_t token = *position - span.first_token;
  if (token < 0 || token >= span.index->tokens()) return -1;
  const std::int32_t place = span.index->place(token);
  return place < 0 ? -1 : place / kBlockTokens;
}

std::int64_t SelectedKeys(const HeadIndex& index, const RowMask* selected) {
  std::int64_t leaves = 0;
  for (std::int64_t b = 0; b < index.columns() / kBlockTokens; ++b) {
    leaves += std::popcount(selected[b]);
  }
  const std::int64_t last = index.leaves() - 1;
  const bool has_last =
      last >= 0 && ((selected[last / kBlockTokens] >> (last % kBlockTokens)) & 1U) != 0;
  return leaves * kBlockTokens - (has_last ? kBlockTokens - index.LeafKeys(last) : 0);
}

// False where a number is not finite.
bool SelectRow(std::span<const SpanView> spans, const StripQueries& queries, std::int64_t row,
               const Strip& strip, RowMask* selected, RowMasses& masses) {
  float* scores = strip.scores + row * strip.columns;
  const std::int64_t d = spans.front().index->layout().key_dim;
  LeafQuery query = {.max = -std::numeric_limits<float>::infinity(),
                     .length = QueryLength(queries.queries + row * d, d)};
  bool finite = std::isfinite(query.length);
  for (const SpanView& span : spans) {
    const float max = LogMasses(span.index->stats(), scores + span.first_column);
    finite = finite && !std::isnan(max);
    query.max = std::max(query.max, max);
  }
  float reference = 0.0F;
  for (const SpanView& span : spans) {
    reference += SumOfMasses(scores + span.first_column, span.index->columns(), query.max);
  }
  query.threshold = Threshold(queries.threshold) * reference;
  masses.max = query.max;
  std::int64_t keys = 0;
  for (std::size_t s = 0; s < spans.size(); ++s) {
    const HeadIndex& index = *spans[s].index;
    query.ratio = index.errors().mass_ratios[static_cast<std::size_t>(queries.threshold)];
    query.square = strip.squares[static_cast<std::int64_t>(s) * strip.padded_rows + row];
    finite = finite && std::isfinite(query.square);
    RowMask* of_span = selected + spans[s].first_column / kBlockTokens;
    const LeafTotals totals = SelectLeaves(
        index.stats(), query,
        OwnLeaf(spans[s], queries.positions == nullptr ? nullptr : queries.positions + row),
        scores + spans[s].first_column, of_span);
    strip.slopes[static_cast<std::int64_t>(s) * queries.rows + row] = totals.slope;
    masses.far += totals.mass;
    masses.lower += totals.lower;
    masses.upper += totals.upper;
    const ErrorTable& errors = index.errors();
    const double unit =
        static_cast<double>(errors.spread) *
        static_cast<double>(errors.factors[static_cast<std::size_t>(queries.threshold)]);
    masses.square_error += unit * unit * static_cast<double>(totals.square_error);
    masses.leaf_keys += SelectedKeys(index, of_span);
    masses.summaries += index.leaves();
    keys += index.keys();
  }
  return finite && std::isfinite(reference) && std::isfinite(masses.far) &&
         static_cast<double>(masses.leaf_keys) <=
             static_cast<double>(queries.exact_share) * static_cast<double>(keys);
}

void ReadEverything(std::span<const SpanView> spans, const StripQueries& queries, std::int64_t row,
                    const Strip& strip, RowMask* selected, RowMasses& masses) {
  SelectAll(spans, selected);
  std::fill_n(strip.scores + row * strip.columns, strip.columns, 0.0F);
  masses = {.summaries = masses.summaries};
  for (std::size_t s = 0; s < spans.size(); ++s) {
    strip.slopes[static_cast<std::int64_t>(s) * queries.rows + row] = 0.0F;
    masses.leaf_keys += spans[s].index->keys();
  }
}

// acc += weights * mean values, block by block of leaves.
void AddMeanValues(const SpanView& span, std::int64_t rows, const Strip& strip,
                   const SoftmaxSums& sums) {
  const std::int64_t columns = sums.padded_value_dim;
  for (std::int64_t block = 0; block * kBlockTokens < span.index->columns(); ++block) {
    const float* weights = strip.scores + span.first_column + block * kBlockTokens;
    const float* values = span.index->mean_values(block);
    if (rows <= FewRows()) {
      for (std::int64_t r = 0; r < rows; ++r) {
        WeightedSumOneQuery(weights + r * strip.columns, values, columns, sums.acc + r * columns,
                            nullptr);
      }
    } else {
      TileProduct(rows, columns, kBlockTokens, weights, strip.columns, values, columns,
                  /*accumulate=*/true, sums.acc, columns);
    }
  }
}

// acc += slope * q^T G. Left out where the product leaves f32: it is a correction.
void FollowKeys(const SpanView& span, const StripQueries& queries, const float* slopes,
                std::int64_t padded_rows, const SoftmaxSums& sums, Scratch& scratch) {
  if (!span.index->has_metric()) return;
  const Scratch::Frame frame(scratch);
  const std::int64_t columns = sums.padded_value_dim;
  float* followed = scratch.Take(padded_rows * columns);
  FollowedValues(*span.index, queries.queries, queries.rows, padded_rows, followed);
  for (std::int64_t r = 0; r < queries.rows; ++r) {
    float* row = followed + r * columns;
    if (slopes[r] == 0.0F) continue;
    ScaleRow(row, slopes[r], row, columns);
    if (AllFinite(row, columns)) AddRow(row, sums.acc + r * columns, columns);
  }
}

}  // namespace

std::int64_t Columns(std::span<const SpanView> spans) {
  return spans.empty() ? 0 : spans.back().first_column + spans.back().index->columns();
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
                     RowMask* selected, RowMasses* masses, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const auto span_count = static_cast<std::int64_t>(spans.size());
  Strip strip;
  strip.columns = Columns(spans);
  strip.padded_rows = PaddedTileRows(queries.rows);
  strip.scores = scratch.Take(strip.padded_rows * strip.columns);
  strip.squares = scratch.Take(span_count * strip.padded_rows);
  strip.slopes = scratch.Take(span_count * queries.rows);
  for (std::int64_t s = 0; s < span_count; ++s) {
    const SpanView& span = spans[static_cast<std::size_t>(s)];
    ScoreLeaves(*span.index, queries.queries, queries.rows, strip.columns,
                strip.scores + span.first_column);
    LeafSquares(*span.index, queries.queries, queries.rows, strip.padded_rows,
                strip.squares + s * strip.padded_rows, scratch);
  }
  sums.Clear();
  const std::int64_t words = strip.columns / kBlockTokens;
  for (std::int64_t r = 0; r < queries.rows; ++r) {
    RowMasses& row = masses[r];
    row = {};
    if (!SelectRow(spans, queries, r, strip, selected + r * words, row)) {
      ReadEverything(spans, queries, r, strip, selected + r * words, row);
    }
    if (row.far > 0.0F) {
      sums.max[r] = row.max;
      sums.sum[r] = row.far;
    }
  }
  for (std::int64_t s = 0; s < span_count; ++s) {
    const SpanView& span = spans[static_cast<std::size_t>(s)];
    AddMeanValues(span, queries.rows, strip, sums);
    FollowKeys(span, queries, strip.slopes + s * queries.rows, strip.padded_rows, sums, scratch);
  }
}

}  // namespace attnd::engine
