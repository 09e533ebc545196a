#include "engine/gated/gated_plan.h"

#include <algorithm>
#include <array>

#include "engine/gemm.h"
#include "engine/linear/answer_row.h"
#include "engine/linear/open_block.h"
#include "engine/linear/row_loops.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

const float* HeadFeatures(const Tail& tail, const LinearDims& dims, std::int64_t head) {
  return tail.features.data() + head * kBlockTokens * dims.features;
}

}  // namespace

GatedAttendPlan::GatedAttendPlan(const LinearLayer& layer)
    : layer_(layer),
      keys_by_cut_(DecaysPerFeature(layer) || !layer.config.update.bonus.empty()),
      together_(layer),
      apart_(layer, 16 * kBlockTokens * layer.dims.features) {}

void GatedAttendPlan::Reset(const QueryGroup& group, const AnswerView& answer) {
  tiles_ = keys_by_cut_ && group.causal && group.count > 1 ? &apart_ : &together_;
  tiles_->Reset(group);
  answer_ = answer;
}

template <typename Use>
void GatedAttendPlan::ForSpans(const QueryTile& tile, const Use& use) const {
  if (!tiles_->group().causal) {
    use(Span{0, tile.rows, tile.tail_rows});
    return;
  }
  Span span;
  tiles_->ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
    const std::int64_t cut = tiles_->Cut(query);
    if (span.rows > 0 && cut != span.cut) {
      use(span);
      span.rows = 0;
    }
    if (span.rows == 0) span = {i, 0, cut};
    ++span.rows;
  });
  use(span);
}

HeadDecays GatedAttendPlan::DecaysOf(const QueryTile& tile) const {
  const TailView& tail = tiles_->group().tail;
  return {layer_, tail.tail->log_decays.data(), tail.valid, tile.tail_rows, tile.head};
}

std::int64_t GatedAttendPlan::SeenFrom(std::int64_t cut) const {
  return layer_.config.update.read_first ? cut - 2 : cut - 1;
}

void GatedAttendPlan::ScoreByRow(const QueryTile& tile, float* features, float* scores,
                                 Scratch& scratch) const {
  const std::int64_t ld = layer_.dims.features;
  const Tail& tail = *tiles_->group().tail.tail;
  const float* keys_t =
      OpenKeys(layer_.dims, HeadFeatures(tail, layer_.dims, tile.head), tile.tail_rows, scratch);
  GemmNN(tile.padded_rows, OpenBlockWidth(tile.tail_rows), ld, features, ld, keys_t, kBlockTokens,
         /*accumulate=*/false, scores, kBlockTokens);
  const HeadDecays decays = DecaysOf(tile);
  std::array<float, kBlockTokens> weights;
  ForSpans(tile, [&](const Span& span) {
    weights.fill(0.0F);
    const float sealed = decays.RowWeights(SeenFrom(span.cut), weights.data());
    for (std::int64_t i = span.first; i < span.first + span.rows; ++i) {
      float* row = scores + i * kBlockTokens;
      // Before the weights: what is not seen may be infinite.
      KeepColumns(FirstRows(SeenFrom(span.cut) + 1), OpenBlockWidth(tile.tail_rows), row);
      MultiplyRow(weights.data(), span.cut, row);
      ScaleRow(features + i * ld, sealed, features + i * ld, ld);
    }
  });
}

void GatedAttendPlan::ScoreByFeature(const QueryTile& tile, float* features, float* scores,
                                     Scratch& scratch) const {
  const std::int64_t ld = layer_.dims.features;
  const UpdateRule& rule = layer_.config.update;
  const Tail& tail = *tiles_->group().tail.tail;
  const float* tail_features = HeadFeatures(tail, layer_.dims, tile.head);
  const HeadDecays decays = DecaysOf(tile);
  const std::int64_t c = layer_.map->feature_dim();
  float* sealed = scratch.Take(ld);
  float* decayed = scratch.Take(kBlockTokens * ld);
  float* span_scores = scratch.Take(kGemmMaxRows * kBlockTokens);
  float* span_features = scratch.Take(kGemmMaxRows * ld);
  ForSpans(tile, [&](const Span& span) {
    const Scratch::Frame frame(scratch);
    const std::int64_t seen_from = SeenFrom(span.cut);
    decays.DecayRows(seen_from, tail_features, decayed, sealed);
    if (rule.read_first) {
      const std::int64_t newest = span.cut - 1;
      float* row = decayed + newest * ld;
      std::fill_n(row, ld, 0.0F);
      for (std::int64_t i = 0; !rule.bonus.empty() && i < c; ++i) {
        row[i] = rule.bonus[static_cast<std::size_t>(tile.head * c + i)] *
                 tail_features[newest * ld + i];
      }
    }
    const std::int64_t padded = GemmPaddedRows(span.rows);
    float* rows = features + span.first * ld;
    std::copy_n(rows, span.rows * ld, span_features);
    std::fill(span_features + span.rows * ld, span_features + padded * ld, 0.0F);
    GemmNN(padded, OpenBlockWidth(span.cut), ld, span_features, ld,
           OpenKeys(layer_.dims, decayed, span.cut, scratch), kBlockTokens, /*accumulate=*/false,
           span_scores, kBlockTokens);
    for (std::int64_t i = 0; i < span.rows; ++i) {
      float* row = scores + (span.first + i) * kBlockTokens;
      std::copy_n(span_scores + i * kBlockTokens, span.cut, row);
      std::fill(row + span.cut, row + kBlockTokens, 0.0F);
      MultiplyRow(sealed, ld, rows + i * ld);
    }
  });
}

void GatedAttendPlan::AddTail(const QueryTile& tile, float* scores, bool accumulate, float* sums,
                              Scratch& scratch) const {
  const LinearDims& dims = layer_.dims;
  const LayerShape& shape = layer_.shape;
  const Tail& tail = *tiles_->group().tail.tail;
  const std::int64_t width = OpenBlockWidth(tile.tail_rows);
  const float* values =
      layer_.config.update.delta
          ? OpenValues(dims, tail.updates.data() + tile.head * kBlockTokens * dims.value_columns,
                       dims.value_columns, tile.tail_rows, scratch, /*one=*/0.0F)
          : OpenValues(dims, tail.values.data() + tile.head * shape.value_dim, shape.value_row(),
                       tile.tail_rows, scratch);
  tiles_->ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
    const RowMask seen = tiles_->VisibleTail(query);
    if (seen != FirstRows(width)) KeepColumns(seen, width, scores + i * kBlockTokens);
  });
  GemmNN(tile.padded_rows, dims.summary_columns, width, scores, kBlockTokens, values,
         dims.summary_columns, accumulate, sums, dims.summary_columns);
}

bool GatedAttendPlan::Run(std::int64_t chain, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const LinearDims& dims = layer_.dims;
  const QueryTile tile = tiles_->Tile(chain);
  const auto& sealed = static_cast<const LinearState&>(*tiles_->group().sealed);
  const bool any_sealed = sealed.unmasked() > 0;

  QueryTiles::Exponents exponents = {};  // the maps of this engine are not scaled
  float* features = tiles_->Features(tile, exponents, scratch);
  float* scores = scratch.Take(tile.padded_rows * kBlockTokens);
  std::fill_n(scores, tile.padded_rows * kBlockTokens, 0.0F);
  if (tile.tail_rows > 0 && keys_by_cut_) {
    ScoreByFeature(tile, features, scores, scratch);
  } else if (tile.tail_rows > 0) {
    ScoreByRow(tile, features, scores, scratch);
  }
  float* sums = scratch.Take(tile.padded_rows * dims.summary_columns);
  std::fill_n(sums, tile.padded_rows * dims.summary_columns, 0.0F);
  if (any_sealed) {
    GemmNN(tile.padded_rows, dims.summary_columns, dims.features, features, dims.features,
           sealed.summary(tile.head), dims.summary_columns, /*accumulate=*/false, sums,
           dims.summary_columns);
  }
  if (tile.tail_rows > 0) AddTail(tile, scores, any_sealed, sums, scratch);
  tiles_->ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t query_head) {
    WriteAnswerRow(layer_,
                   {query, query_head, !any_sealed && tiles_->VisibleTail(query) == 0, 0,
                    sums + i * dims.summary_columns},
                   answer_);
  });
  return true;
}

}  // namespace attnd::engine
