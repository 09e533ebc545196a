#include "engine/kde/index/leaf_strip.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/exact/attend_block.h"
#include "engine/kde/index/leaf_query.h"
#include "engine/simd/leaf_selection.h"
#include "engine/simd/maps.h"
#include "engine/simd/one_query.h"

namespace attnd::engine {
namespace {

constexpr float kMostErrorScale = 16.0F;

// Working memory of a strip.
struct Strip {
  std::int64_t columns = 0;
  float* scores = nullptr;   // [padded rows, columns]: scores, log masses, weights in turn
  float* offsets = nullptr;  // [metrics][padded rows, d_k]
  float* lengths = nullptr;  // [metrics][rows], of offsets
  float* squares = nullptr;  // [metrics][rows]
  float* slopes = nullptr;   // [metrics][rows]
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
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < index.columns() / kBlockTokens; ++b) {
    for (RowMask rest = selected[b]; rest != 0; rest &= rest - 1) {
      keys += index.LeafKeys(b * kBlockTokens + std::countr_zero(rest));
    }
  }
  return keys;
}

// False where a number is not finite.
bool SelectRow(std::span<const SpanView> spans, const StripQueries& queries, std::int64_t row,
               const Strip& strip, RowMask* selected, RowMasses& masses) {
  float* scores = strip.scores + row * strip.columns;
  LeafQuery query = {.max = -std::numeric_limits<float>::infinity()};
  bool finite = true;
  for (const SpanView& span : spans) {
    const float max = LogMasses(span.index->stats(), scores + span.first_column);
    finite = finite && !std::isnan(max);
    query.max = std::max(query.max, max);
  }
  float reference = 0.0F;
  for (const SpanView& span : spans) {
    reference += SumOfMasses(scores + span.first_column, span.index->columns(), query.max);
  }
  query.bounds = queries.bounds;
  masses.max = query.max;
  std::int64_t keys = 0;
  for (const SpanView& span : spans) {
    const HeadIndex& index = *span.index;
    const auto at = static_cast<std::size_t>(span.TableRow(queries.threshold));
    query.threshold =
        Threshold(queries.threshold) * reference / ErrorScale(spans, span, queries.threshold);
    query.ratio = span.errors->mass_ratios[at];
    query.square = strip.squares[span.metric * queries.rows + row];
    query.length = strip.lengths[span.metric * queries.rows + row];
    finite = finite && std::isfinite(query.square) && std::isfinite(query.length);
    RowMask* of_span = selected + span.first_column / kBlockTokens;
    const LeafTotals totals = SelectLeaves(
        index.stats(), query,
        OwnLeaf(span, queries.positions == nullptr ? nullptr : queries.positions + row),
        scores + span.first_column, of_span);
    strip.slopes[span.metric * queries.rows + row] += totals.slope;
    masses.far += totals.mass;
    masses.lower += totals.lower;
    masses.upper += totals.upper;
    const double unit =
        static_cast<double>(span.errors->spread) * static_cast<double>(span.errors->factors[at]);
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
  for (const SpanView& span : spans) {
    strip.slopes[span.metric * queries.rows + row] = 0.0F;
    masses.leaf_keys += span.index->keys();
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
    const auto same = std::find_if(views.begin(), views.end(), [&](const SpanView& view) {
      return view.index->metric() == index.metric();
    });
    views.push_back({.index = &index,
                     .errors = &index.errors(),
                     .first_token = span->span.first,
                     .first_column = Columns(views),
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
  Strip strip;
  strip.columns = Columns(spans);
  strip.scores = scratch.Take(PaddedTileRows(queries.rows) * strip.columns);
  std::int64_t metrics = 0;
  ForEachMetric(spans, [&](const LeafMetric*, std::int64_t) { ++metrics; });
  const BlockLayout& layout = spans.front().index->layout();
  const std::int64_t offset_floats = PaddedTileRows(queries.rows) * layout.key_dim;
  strip.offsets = scratch.Take(metrics * offset_floats);
  strip.lengths = scratch.Take(metrics * queries.rows);
  strip.squares = scratch.Take(metrics * queries.rows);
  strip.slopes = scratch.Take(metrics * queries.rows);
  std::fill_n(strip.slopes, metrics * queries.rows, 0.0F);
  for (const SpanView& span : spans) {
    ScoreLeaves(*span.index, queries.queries, queries.rows, strip.columns,
                strip.scores + span.first_column);
  }
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
  for (const SpanView& span : spans) AddMeanValues(span, queries.rows, strip, sums);
  ForEachMetric(spans, [&](const LeafMetric* metric, std::int64_t number) {
    if (metric == nullptr) return;
    FollowKeys(*metric, layout, queries.rows, strip.offsets + number * offset_floats,
               strip.slopes + number * queries.rows, sums, scratch);
  });
}

}  // namespace attnd::engine
