// What query rows need to meet the summaries of an index: products with the summaries. Queries are
// scaled rows [padded rows, d_k], padded rows = PaddedTileRows(rows). The bits of a row do not
// depend on the other rows (engine/gemm.h). Thread-safe; cannot fail but for std::bad_alloc from
// scratch.
#ifndef ATTND_ENGINE_KDE_INDEX_LEAF_QUERY_H_
#define ATTND_ENGINE_KDE_INDEX_LEAF_QUERY_H_

#include <cstdint>

#include "engine/kde/index/leaf_metric.h"
#include "engine/kde/index/summary_table.h"
#include "engine/scratch.h"

namespace attnd::engine {

// |q|.
float QueryLength(const float* query, std::int64_t dim);

// scores[r * stride + c] = q_r . mu_c of the table's columns; those of the last block's padding are
// not written, or not of use.
void ScoreSummaries(const SummaryTable& table, const float* queries, std::int64_t rows,
                    std::int64_t stride, float* scores);

// offsets [PaddedTileRows(rows), d_k] = q - q0, where q0 is the metric's centre; q without a metric
// (null).
void OffsetQueries(const LeafMetric* metric, std::int64_t key_dim, const float* queries,
                   std::int64_t rows, float* offsets);

// squares[r] = u of engine/simd/leaf_selection.h, of offsets x: x^T P x, or |x|^2 without a metric.
void LeafSquares(const LeafMetric* metric, std::int64_t key_dim, const float* offsets,
                 std::int64_t rows, float* squares, Scratch& scratch);

// followed [PaddedTileRows(rows), padded d_v] = x^T G, of offsets x.
void FollowedValues(const LeafMetric& metric, const BlockLayout& layout, const float* offsets,
                    std::int64_t rows, float* followed);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_LEAF_QUERY_H_
