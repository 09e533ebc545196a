#include "engine/kde/index/leaf_readers.h"

#include <bit>

namespace attnd::engine {
namespace {

// Calls f(row, leaf) for each leaf that a row selected.
template <typename Function>
void ForEachSelected(const RowMask* selected, std::int64_t stride, std::int64_t rows,
                     RowMask wanted, const Function& f) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (RowMask rest = selected[r * stride] & wanted; rest != 0; rest &= rest - 1) {
      f(r, static_cast<std::size_t>(std::countr_zero(rest)));
    }
  }
}

}  // namespace

LeafReaders::LeafReaders(const RowMask* selected, std::int64_t stride, std::int64_t rows,
                         std::int64_t first, Scratch& scratch) {
  const RowMask wanted = ~FirstRows(first);
  ForEachSelected(selected, stride, rows, wanted,
                  [&](std::int64_t /*row*/, std::size_t leaf) { ++begins_[leaf + 1]; });
  for (std::size_t leaf = 1; leaf < begins_.size(); ++leaf) begins_[leaf] += begins_[leaf - 1];
  rows_ = scratch.TakeI32(begins_.back());
  std::array<std::int64_t, kBlockTokens + 1> next = begins_;
  ForEachSelected(selected, stride, rows, wanted, [&](std::int64_t row, std::size_t leaf) {
    rows_[next[leaf]++] = static_cast<std::int32_t>(row);
  });
}

}  // namespace attnd::engine
