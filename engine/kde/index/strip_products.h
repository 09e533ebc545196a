// The products of a strip of query rows with the summaries of leaves and branches. Where many rows
// selected a branch all go through it, else those that did side by side; a row's bits are the same
// either way. Thread-safe; cannot fail but for std::bad_alloc from scratch.
#ifndef ATTND_ENGINE_KDE_INDEX_STRIP_PRODUCTS_H_
#define ATTND_ENGINE_KDE_INDEX_STRIP_PRODUCTS_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/exact/softmax_sums.h"
#include "engine/kde/index/leaf_metric.h"
#include "engine/kde/index/leaf_strip.h"
#include "engine/kde/index/span_view.h"
#include "engine/kde/index/strip.h"
#include "engine/scratch.h"

namespace attnd::engine {

// Scores of the leaves of selected branches.
void ScoreLeaves(const SpanView& span, const StripQueries& queries, const Strip& strip);

// acc += weights * mean values, of branches and of the leaves of selected ones.
void AddBranchValues(const SpanView& span, std::int64_t rows, const Strip& strip,
                     const SoftmaxSums& sums);
void AddLeafValues(const SpanView& span, std::int64_t rows, const Strip& strip,
                   const SoftmaxSums& sums);

// acc += slope * q^T G. Left out where the product leaves f32: it is a correction.
void FollowKeys(const LeafMetric& metric, const BlockLayout& layout, std::int64_t rows,
                const float* offsets, const float* slopes, const SoftmaxSums& sums,
                Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_STRIP_PRODUCTS_H_
