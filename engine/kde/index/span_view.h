// The spans of a context as a plan meets them: the indices of one kv-head side by side, with the
// place of each one's leaves and branches among those of all.
//
// Views borrow from a state. Thread-safe; cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_SPAN_VIEW_H_
#define ATTND_ENGINE_KDE_INDEX_SPAN_VIEW_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/block.h"
#include "engine/kde/index/head_index.h"
#include "engine/kde/index/index_state.h"

namespace attnd::engine {

// One span's index of the kv-head.
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

// Columns of all spans' leaves together, and of their branches; multiples of 64.
std::int64_t Columns(std::span<const SpanView> spans);
std::int64_t BranchColumns(std::span<const SpanView> spans);

// All leaves of all spans: bit j of all[b] is leaf 64 b + j.
void SelectAll(std::span<const SpanView> spans, RowMask* selected);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_SPAN_VIEW_H_
