// Working memory of a strip of query rows on its way over summaries (leaf_strip.h): scores, which
// branches each row selected, and what rows need of each metric. Borrowed from a scratch; one
// thread.
#ifndef ATTND_ENGINE_KDE_INDEX_STRIP_H_
#define ATTND_ENGINE_KDE_INDEX_STRIP_H_

#include <bit>
#include <cstdint>

#include "engine/block.h"
#include "engine/kde/index/branch_summary.h"
#include "engine/kde/index/span_view.h"

namespace attnd::engine {

// Which branches rows selected, kept while a strip is worked on.
struct BranchMasks {
  RowMask* rows = nullptr;  // [rows][2][branch columns / 64]
  std::int64_t stride = 0;  // words from row to row
};

// Scores become log masses and those become weights, in place.
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
  float* reach = nullptr;    // [branch columns] three times, for one row
  // The rows that selected a branch, side by side.
  float* gathered = nullptr;  // [padded rows, the larger of d_k and padded d_v]
  float* weights = nullptr;   // [padded rows, 64]

  RowMask* selected(std::int64_t row) const { return masks.rows + row * masks.stride; }
  // Those that the loosest threshold selects.
  RowMask* always(std::int64_t row) const { return selected(row) + branch_columns / kBlockTokens; }
};

inline bool HasBit(const RowMask* words, std::int64_t bit) {
  return ((words[bit / kBlockTokens] >> (bit % kBlockTokens)) & 1U) != 0;
}

// The branches of one block of 64 leaves.
inline constexpr std::int64_t kBlockBranches = kBlockTokens / kBranchLeaves;

// Which of a block's branches a row selected: bits 0 to 3. `words`: the row's.
inline std::uint32_t BlockBits(const SpanView& span, const RowMask* words, std::int64_t block) {
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

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_STRIP_H_
