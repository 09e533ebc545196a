#include "engine/kde/index/plan_audits.h"

#include <algorithm>
#include <cmath>

namespace attnd::engine {
namespace {

std::int64_t RowFloats(const BlockLayout& layout) {
  return layout.key_dim + 2 * SoftmaxSums::RowFloats(layout.padded_value_dim);
}

}  // namespace

std::int64_t PlanAudits::RowBytes(const BlockLayout& layout, std::int64_t words) {
  return static_cast<std::int64_t>(sizeof(Entry)) +
         RowFloats(layout) * static_cast<std::int64_t>(sizeof(float)) +
         words * static_cast<std::int64_t>(sizeof(RowMask));
}

void PlanAudits::Reset(std::int64_t chains, std::int64_t rows, std::int64_t words) {
  rows_ = rows;
  words_ = words;
  chains_.assign(Index(chains), Chain{});
  entries_.resize(Index(chains * rows));
  const std::int64_t floats = chains * rows * RowFloats(layout_);
  if (floats_.size() < floats) floats_ = AlignedBuffer<float>::Uninitialized(floats);
  const std::int64_t masks = chains * rows * words;
  if (unread_.size() < masks) unread_ = AlignedBuffer<RowMask>::Uninitialized(masks);
}

AuditRows PlanAudits::RowsOf(std::int64_t chain) {
  const std::int64_t columns = layout_.padded_value_dim;
  float* queries = floats_.data() + chain * rows_ * RowFloats(layout_);
  float* predicted = queries + rows_ * layout_.key_dim;
  float* truth = predicted + rows_ * SoftmaxSums::RowFloats(columns);
  return {.count = count(chain),
          .queries = queries,
          .predicted = {predicted, rows_, columns},
          .truth = {truth, rows_, columns},
          .unread = unread_.data() + chain * rows_ * words_};
}

void PlanAudits::Offer(std::int64_t chain, std::int64_t row, std::uint64_t ticket) {
  const auto less = [](const Entry& a, const Entry& b) { return a.ticket < b.ticket; };
  std::int64_t& count = chains_[Index(chain)].count;
  const auto first = entries_.begin() + chain * rows_;
  if (count == rows_) {
    if (count == 0 || !(ticket < first->ticket)) return;
    std::pop_heap(first, first + count, less);
    --count;
  }
  first[count++] = {.ticket = ticket, .row = row};
  std::push_heap(first, first + count, less);
}

void PlanAudits::Choose(std::int64_t chain) {
  const auto first = entries_.begin() + chain * rows_;
  std::sort(first, first + count(chain),
            [](const Entry& a, const Entry& b) { return a.row < b.row; });
}

void PlanAudits::SetRatio(std::int64_t chain, std::int64_t i, double ratio) {
  const auto rounded = static_cast<float>(ratio);
  if (std::isfinite(rounded)) entries_[Index(chain * rows_ + i)].ratio = rounded;
}

void PlanAudits::Tell(std::int64_t first, std::int64_t end, const AuditKind& kind,
                      std::int64_t head, AuditRecord& record) const {
  for (std::int64_t chain = first; chain < end; ++chain) {
    for (std::int64_t i = 0; i < count(chain); ++i) {
      const float ratio = entry(chain, i).ratio;
      if (ratio >= 0.0F) record.Add(kind, head, ratio);
    }
  }
}

}  // namespace attnd::engine
