#include "engine/gated/delta.h"

#include <algorithm>
#include <array>

#include "engine/gemm.h"
#include "engine/linear/open_block.h"
#include "engine/linear/row_loops.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// Products have at least this many rows; those beyond the wanted one are not looked at.
constexpr std::int64_t kOneRow = kGemmRowBuckets[0];

}  // namespace

void WriteUpdates(const LinearLayer& layer, const HeadDecays& decays, const DeltaRows& rows,
                  float* updates, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const LinearDims& dims = layer.dims;
  const std::int64_t end = rows.first + rows.count;
  const std::int64_t padded = GemmPaddedRows(rows.count);

  // Each row's weights of the rows before it, and the row as it reads the sealed part.
  std::array<float, kBlockTokens> weights;
  float* scores = scratch.Take((padded + kOneRow) * kBlockTokens);
  float* readers = scratch.Take(padded * dims.features);
  const float* keys = rows.features + rows.first * dims.features;
  std::copy_n(keys, rows.count * dims.features, readers);
  std::fill(readers + rows.count * dims.features, readers + padded * dims.features, 0.0F);
  const float* keys_t = OpenKeys(dims, rows.features, end, scratch);
  GemmNN(padded, OpenBlockWidth(end), dims.features, readers, dims.features, keys_t, kBlockTokens,
         /*accumulate=*/false, scores, kBlockTokens);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* row = scores + i * kBlockTokens;
    const float sealed = decays.RowWeights(rows.first + i, weights.data());
    MultiplyRow(weights.data(), rows.first + i, row);
    ScaleRow(keys + i * dims.features, sealed, readers + i * dims.features, dims.features);
  }

  float* read = scratch.Take(padded * dims.summary_columns);
  if (rows.summary != nullptr) {
    GemmNN(padded, dims.summary_columns, dims.features, readers, dims.features, rows.summary,
           dims.summary_columns, /*accumulate=*/false, read, dims.summary_columns);
  } else {
    std::fill_n(read, padded * dims.summary_columns, 0.0F);
  }

  float* before = scratch.Take(kOneRow * dims.value_columns);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.first + i;
    if (row == 0) {
      std::fill_n(before, dims.value_columns, 0.0F);
    } else {
      GemmNN(kOneRow, dims.value_columns, row, scores + i * kBlockTokens, kBlockTokens, updates,
             dims.value_columns, /*accumulate=*/false, before, dims.value_columns);
    }
    const float* value = rows.values + row * rows.value_stride;
    const float rate = rows.rates[row * rows.rate_stride];
    float* update = updates + row * dims.value_columns;
    for (std::int64_t j = 0; j < dims.value_dim; ++j) {
      update[j] = rate * (value[j] - (read[i * dims.summary_columns + j] + before[j]));
    }
    std::fill(update + dims.value_dim, update + dims.value_columns, 0.0F);
  }
}

}  // namespace attnd::engine
