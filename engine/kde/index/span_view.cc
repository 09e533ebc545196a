#include "engine/kde/index/span_view.h"

#include <algorithm>

namespace attnd::engine {
namespace {
constexpr float kMostErrorScale = 16.0F;
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

}  // namespace attnd::engine
