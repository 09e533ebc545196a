// What a strip of query rows makes of all spans of a context before any leaf is read: which leaves
// each row selects, and what the others contribute from their summaries.
//
// Per row, over the branches of all spans: scores against mean keys, the largest log mass and the
// reference mass, the selection (engine/simd/leaf_selection.h) of branches, with that of the
// query's own token. The same over the leaves of selected branches. There the reference mass has
// the leaves of those branches that any threshold would select in place of the branches: a few
// leaves may hold more than a branch's lower bound tells, and then the rest matters less. Then the
// weighted mean values of what is not selected, branches first, and the first-order term.
// Rows whose numbers are not finite, and with `exact_share` rows that would read more than that
// share of the keys, select everything.
//
// The bits of a row do not depend on the other rows. Thread-safe; cannot fail but for
// std::bad_alloc from scratch.
#ifndef ATTND_ENGINE_KDE_INDEX_LEAF_STRIP_H_
#define ATTND_ENGINE_KDE_INDEX_LEAF_STRIP_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/block.h"
#include "engine/exact/softmax_sums.h"
#include "engine/kde/index/head_index.h"
#include "engine/kde/index/index_state.h"
#include "engine/scratch.h"

namespace attnd::engine {

// One span's index of the strip's kv-head, as a plan sees it.
struct SpanView {
  const HeadIndex* index = nullptr;
  const ErrorTable* errors = nullptr;
  std::int64_t first_token = 0;
  std::int64_t first_column = 0;  // of its leaves among those of all spans
  std::int64_t first_branch = 0;  // of its branches, likewise
  std::int64_t metric = 0;        // which of the spans' different ones, in order of appearance
  // Thresholds are parts of the mass of the whole context, a table's of that of the keys it was
  // learned from: rows of the table between them.
  std::int64_t table_shift = 0;

  std::int64_t TableRow(std::int64_t threshold) const {
    return std::max(threshold - table_shift, std::int64_t{0});
  }
};

// How much more a span's predicted errors are worth than those of the first, the main one, which
// thresholds are made for: 1 to 16.
float ErrorScale(std::span<const SpanView> spans, const SpanView& span, std::int64_t threshold);

// The views of one kv-head of a state, in place of what is in `views`.
void ViewSpans(const IndexState& state, std::int64_t head, std::vector<SpanView>& views);

// What is known of a row beside its sums. Masses are relative to exp(max).
struct RowMasses {
  float max = 0.0F;
  float far = 0.0F;    // of leaves that were not read, as predicted
  float lower = 0.0F;  // bounds of the same
  float upper = 0.0F;
  double square_error = 0.0;   // of the predicted error, in (value units * mass)^2
  std::int64_t leaf_keys = 0;  // that are read
  std::int64_t summaries = 0;  // that were
  bool complete = true;        // whether all keys are read
};

struct StripQueries {
  std::int64_t rows = 0;
  const float* queries = nullptr;           // [PaddedTileRows(rows), d_k], scaled
  const std::int64_t* positions = nullptr;  // [rows], of the queries' own tokens; null: none
  std::int64_t threshold = 0;               // which one, see Threshold()
  float exact_share = 1.0F;
  bool bounds = false;  // whether RowMasses::lower and upper are wanted
};

// Beside its products a row spends this on a leaf's summary: four exponentials and a few
// multiplications.
inline constexpr std::int64_t kSelectFlops = 200;

// Columns of all spans' leaves together, and of their branches; multiples of 64.
std::int64_t Columns(std::span<const SpanView> spans);
std::int64_t BranchColumns(std::span<const SpanView> spans);

// All leaves of all spans: bit j of all[b] is leaf 64 b + j.
void SelectAll(std::span<const SpanView> spans, RowMask* selected);

// Which branches rows selected, kept while a strip is worked on.
struct BranchMasks {
  RowMask* rows = nullptr;  // [rows][2][branch columns / 64]
  std::int64_t stride = 0;  // words from row to row
};

// Begins the sums of the strip's rows with what is not read, writes [rows, columns / 64] selections
// and [rows] masses. Requires at least one leaf.
void AttendSummaries(std::span<const SpanView> spans, const StripQueries& strip, SoftmaxSums sums,
                     RowMask* selected, std::int64_t selected_stride, const BranchMasks& branches,
                     RowMasses* masses, Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_LEAF_STRIP_H_
