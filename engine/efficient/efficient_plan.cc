#include "engine/efficient/efficient_plan.h"

#include <algorithm>

#include "engine/gemm.h"
#include "engine/linear/answer_row.h"
#include "engine/linear/open_block.h"
#include "engine/linear/row_loops.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// y = a * b, elementwise.
void MultiplyRows(const float* a, const float* b, std::int64_t n, float* y) {
  for (std::int64_t i = 0; i < n; ++i) y[i] = a[i] * b[i];
}

// What a row costs beside its products where its cut has its own: they are padded to 4 rows, and
// the open block is brought to the cut's steps (8 operations a number, by time).
std::int64_t CutFlops(const LinearDims& dims) {
  const std::int64_t products = 2 * (dims.features * dims.summary_columns +
                                     kBlockTokens * (dims.features + dims.summary_columns));
  return (kGemmRowBuckets[0] - 1) * products + 8 * kBlockTokens * dims.features;
}

}  // namespace

EfficientPlan::EfficientPlan(const LinearLayer& layer)
    : layer_(layer), together_(layer), apart_(layer, CutFlops(layer.dims)) {}

void EfficientPlan::Reset(const QueryGroup& group, const AnswerView& answer) {
  answer_ = answer;
  cuts_apart_ = false;
  together_.Reset(group);
  apart_.Reset(group);
  if (!group.causal || group.count == 1) return;
  for (std::int64_t head = 0; head < layer_.shape.kv_heads && !cuts_apart_; ++head) {
    const std::int64_t tail_rows = together_.Cut(group.count - 1);
    cuts_apart_ = !SameSteps(TailRows({head, 0, 0, 0, tail_rows}), sealed().known_steps(head));
  }
}

const EfficientState& EfficientPlan::sealed() const {
  return static_cast<const EfficientState&>(*tiles().group().sealed);
}

EncodedRows EfficientPlan::TailRows(const QueryTile& tile) const {
  const std::int64_t columns = layer_.dims.features;
  if (tile.tail_rows == 0) return {.columns = columns};
  const TailView& tail = tiles().group().tail;
  const std::int64_t first = tile.head * kBlockTokens * columns;
  return {tail.tail->features.data() + first, tail.tail->exponents.data() + first, tile.tail_rows,
          tail.valid & FirstRows(tile.tail_rows), columns};
}

const float* EfficientPlan::Exponentials(const QueryTile& tile, Scratch& scratch) const {
  const LayerShape& shape = layer_.shape;
  const std::int64_t d = shape.key_dim;
  const std::int64_t columns = layer_.dims.features;
  float* exponentials = scratch.Take(tile.rows * columns);
  tiles().ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t query_head) {
    float* row = exponentials + i * columns;
    ScaleRow(tiles().group().queries + query * shape.query_row() + query_head * d, shape.scale, row,
             d);
    ExpShifted(row, MaxOf(row, d), 0.0F, row, d);
    std::fill(row + d, row + columns, 0.0F);
  });
  return exponentials;
}

EfficientPlan::Context EfficientPlan::MakeContext(const QueryTile& tile, Scratch& scratch) const {
  const LinearDims& dims = layer_.dims;
  Context context;
  context.sealed_steps = sealed().known_steps(tile.head);
  float* key_sums = scratch.Take(dims.features);
  for (std::int64_t a = 0; a < dims.features; ++a) {
    key_sums[a] =
        context.sealed_steps == nullptr
            ? 0.0F
            : sealed().sums().summary(tile.head)[a * dims.summary_columns + dims.value_dim];
  }
  context.sealed_key_sums = key_sums;
  if (tile.tail_rows > 0) {
    const Tail& tail = *tiles().group().tail.tail;
    context.values = OpenValues(dims, tail.values.data() + tile.head * layer_.shape.value_dim,
                                layer_.shape.value_row(), tile.tail_rows, scratch);
  }
  return context;
}

float* EfficientPlan::Weights(const QueryTile& tile, const Context& context,
                              const AlignedRows& tail, const float* exponentials,
                              Scratch& scratch) const {
  const std::int64_t columns = layer_.dims.features;
  float* weights = scratch.Take(tile.padded_rows * columns);
  const Scratch::Frame frame(scratch);
  float* sealed_sums = scratch.Take(columns);
  float* tail_sums = scratch.Take(columns);
  float* reciprocals = scratch.Take(columns);
  std::copy_n(context.sealed_key_sums, columns, sealed_sums);
  if (tail.base_factors != nullptr) {
    MultiplyRows(sealed_sums, tail.base_factors, columns, sealed_sums);
  }
  std::fill_n(tail_sums, columns, 0.0F);
  std::int64_t summed = -1;
  tiles().ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
    // Cuts do not fall from one query to the next.
    if (const std::int64_t cut = tiles().Cut(query); cut != summed) {
      for (std::int64_t j = std::max<std::int64_t>(summed, 0); j < cut; ++j) {
        AddRow(tail.mantissas + j * columns, tail_sums, columns);
      }
      summed = cut;
      for (std::int64_t a = 0; a < columns; ++a) {
        const float sum = sealed_sums[a] + tail_sums[a];
        // Only the sum of no token is 0, and that of a column of padding.
        reciprocals[a] = sum > 0 ? 1.0F / sum : 0.0F;
      }
    }
    MultiplyRows(exponentials + i * columns, reciprocals, columns, weights + i * columns);
  });
  std::fill(weights + tile.rows * columns, weights + tile.padded_rows * columns, 0.0F);
  return weights;
}

void EfficientPlan::AddTail(const QueryTile& tile, const Context& context, const AlignedRows& tail,
                            const float* weights, float* sums, Scratch& scratch) const {
  const LinearDims& dims = layer_.dims;
  const std::int64_t width = OpenBlockWidth(tile.tail_rows);
  const float* keys_t = OpenKeys(dims, tail.mantissas, tile.tail_rows, scratch);
  float* products = scratch.Take(tile.padded_rows * kBlockTokens);
  GemmNN(tile.padded_rows, width, dims.features, weights, dims.features, keys_t, kBlockTokens,
         /*accumulate=*/false, products, kBlockTokens);
  tiles().ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
    const RowMask seen = tiles().VisibleTail(query);
    if (seen != FirstRows(width)) KeepColumns(seen, width, products + i * kBlockTokens);
  });
  GemmNN(tile.padded_rows, dims.summary_columns, width, products, kBlockTokens, context.values,
         dims.summary_columns, /*accumulate=*/context.sealed_steps != nullptr, sums,
         dims.summary_columns);
}

void EfficientPlan::Answer(const QueryTile& tile, const Context& context, const float* exponentials,
                           Scratch& scratch) const {
  const Scratch::Frame frame(scratch);
  const LinearDims& dims = layer_.dims;
  const bool any_sealed = context.sealed_steps != nullptr;
  const AlignedRows tail = AlignRows(TailRows(tile), context.sealed_steps, scratch);
  float* weights = Weights(tile, context, tail, exponentials, scratch);
  float* sums = scratch.Take(tile.padded_rows * dims.summary_columns);
  if (any_sealed) {
    const float* sealed_weights = weights;
    if (tail.base_factors != nullptr) {
      float* scaled = scratch.Take(tile.padded_rows * dims.features);
      for (std::int64_t i = 0; i < tile.padded_rows; ++i) {
        MultiplyRows(weights + i * dims.features, tail.base_factors, dims.features,
                     scaled + i * dims.features);
      }
      sealed_weights = scaled;
    }
    GemmNN(tile.padded_rows, dims.summary_columns, dims.features, sealed_weights, dims.features,
           sealed().sums().summary(tile.head), dims.summary_columns, /*accumulate=*/false, sums,
           dims.summary_columns);
  }
  if (tile.tail_rows > 0) {
    AddTail(tile, context, tail, weights, sums, scratch);
  } else if (!any_sealed) {
    std::fill_n(sums, tile.padded_rows * dims.summary_columns, 0.0F);
  }
  tiles().ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t query_head) {
    WriteAnswerRow(layer_,
                   {query, query_head, !any_sealed && tiles().VisibleTail(query) == 0, 0,
                    sums + i * dims.summary_columns},
                   answer_);
  });
}

bool EfficientPlan::Run(std::int64_t chain, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const QueryTile tile = tiles().Tile(chain);
  const Context context = MakeContext(tile, scratch);
  const float* exponentials = Exponentials(tile, scratch);
  if (SameSteps(TailRows(tile), context.sealed_steps)) {
    Answer(tile, context, exponentials, scratch);
    return true;
  }
  const std::int64_t group = layer_.shape.group_size();
  for (std::int64_t i = 0; i < tile.rows;) {
    const std::int64_t first = tile.first + i;
    const std::int64_t cut = tiles().Cut(first / group);
    std::int64_t rows = group - first % group;
    while (i + rows < tile.rows && tiles().Cut((first + rows) / group) == cut) rows += group;
    rows = std::min(rows, tile.rows - i);
    Answer({tile.head, first, rows, GemmPaddedRows(rows), cut}, context,
           exponentials + i * layer_.dims.features, scratch);
    i += rows;
  }
  return true;
}

}  // namespace attnd::engine
