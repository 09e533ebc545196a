// The summary of a branch, 16 neighbouring leaves, from the summaries of its leaves, so that a
// query far from all of them need not look at each.
//
// Weights a_l of leaves are their shares of sum exp(q0 . k); with mu = sum a_l mu_l the formulas of
// leaf_summary.h hold, the variance by the law of total variance, the radius by the triangle
// inequality.
//
// Sums in f64. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_KDE_INDEX_BRANCH_SUMMARY_H_
#define ATTND_ENGINE_KDE_INDEX_BRANCH_SUMMARY_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/kde/index/leaf_metric.h"
#include "engine/kde/index/summary_table.h"

namespace attnd::engine {

inline constexpr std::int64_t kBranchLeaves = 16;

// A branch is looked into where its predicted error is above this part of a leaf's threshold: its
// 16 summaries cost a third of reading a leaf, and its keys are less like normal ones. 131,072 word
// vectors at error .01 (operator norm): 32 times the speed of reading all keys, with 1 and with 1/4
// 30.
inline constexpr float kBranchShare = 0.5F;

// A span of so few branches is looked into everywhere: 16,384 word vectors, 15 branches: error
// .0113 at 7.9 times the speed of reading all keys, by branches .0104 at 6.1 times.
constexpr bool AlwaysLooksWithin(std::int64_t branches) { return branches <= 16; }

constexpr std::int64_t BranchesOf(std::int64_t leaves) {
  return (leaves + kBranchLeaves - 1) / kBranchLeaves;
}

// Leaves [16 branch, 16 branch + 16) as far as there are any, slopes included, become the branch's
// summary. `metric`: theirs; may be null.
void SummarizeBranch(const SummaryTable& leaves, const LeafMetric* metric, std::int64_t branch,
                     SummaryTable& branches);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_BRANCH_SUMMARY_H_
