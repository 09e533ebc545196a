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

#include <cstdint>
#include <span>

#include "engine/block.h"
#include "engine/exact/softmax_sums.h"
#include "engine/kde/index/span_view.h"
#include "engine/kde/index/strip.h"
#include "engine/scratch.h"

namespace attnd::engine {

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

// Begins the sums of the strip's rows with what is not read, writes [rows, columns / 64] selections
// and [rows] masses. Requires at least one leaf.
void AttendSummaries(std::span<const SpanView> spans, const StripQueries& strip, SoftmaxSums sums,
                     RowMask* selected, std::int64_t selected_stride, const BranchMasks& branches,
                     RowMasses* masses, Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_LEAF_STRIP_H_
