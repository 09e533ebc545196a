#include "engine/kde/index/leaf_query.h"

#include <algorithm>
#include <cmath>

#include "engine/exact/attend_block.h"
#include "engine/simd/nearest.h"
#include "engine/simd/one_query.h"

namespace attnd::engine {

float QueryLength(const float* query, std::int64_t dim) {
  return std::sqrt(Dot(query, query, dim));
}

void ScoreSummaries(const SummaryTable& table, const float* queries, std::int64_t rows,
                    std::int64_t stride, float* scores) {
  const std::int64_t d = table.layout().key_dim;
  for (std::int64_t block = 0; block * kBlockTokens < table.count(); ++block) {
    const float* means_t = table.means_t(block);
    float* of_block = scores + block * kBlockTokens;
    if (rows <= FewRows()) {
      for (std::int64_t r = 0; r < rows; ++r) {
        ScoresOneQuery(queries + r * d, d, means_t, of_block + r * stride, nullptr);
      }
    } else {
      TileProduct(rows, table.BlockColumns(block), d, queries, d, means_t, kBlockTokens,
                  /*accumulate=*/false, of_block, stride);
    }
  }
}

void OffsetQueries(const LeafMetric* metric, std::int64_t key_dim, const float* queries,
                   std::int64_t rows, float* offsets) {
  for (std::int64_t r = 0; r < PaddedTileRows(rows); ++r) {
    const float* query = queries + r * key_dim;
    float* offset = offsets + r * key_dim;
    for (std::int64_t c = 0; c < key_dim; ++c) {
      offset[c] = metric == nullptr ? query[c] : query[c] - metric->centre()[c];
    }
  }
}

void LeafSquares(const LeafMetric* metric, std::int64_t key_dim, const float* offsets,
                 std::int64_t rows, float* squares, Scratch& scratch) {
  const std::int64_t d = key_dim;
  if (metric == nullptr) {
    for (std::int64_t r = 0; r < rows; ++r) squares[r] = Dot(offsets + r * d, offsets + r * d, d);
    return;
  }
  const Scratch::Frame frame(scratch);
  const std::int64_t columns = metric->padded_key_dim();
  float* turned = scratch.Take(PaddedTileRows(rows) * columns);
  TileProduct(rows, columns, d, offsets, d, metric->covariance(), columns, /*accumulate=*/false,
              turned, columns);
  for (std::int64_t r = 0; r < rows; ++r) {
    squares[r] = std::max(Dot(turned + r * columns, offsets + r * d, d), 0.0F);
  }
}

void FollowedValues(const LeafMetric& metric, const BlockLayout& layout, const float* offsets,
                    std::int64_t rows, float* followed) {
  const std::int64_t columns = layout.padded_value_dim;
  TileProduct(rows, columns, layout.key_dim, offsets, layout.key_dim, metric.cross_covariance(),
              columns, /*accumulate=*/false, followed, columns);
}

}  // namespace attnd::engine
