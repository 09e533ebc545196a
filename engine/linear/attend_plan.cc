#include "engine/linear/attend_plan.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "engine/gemm.h"
#include "engine/linear/answer_row.h"
#include "engine/linear/open_block.h"
#include "engine/linear/row_exponents.h"
#include "engine/linear/row_loops.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// What the scores of a row are multiplied by. Mostly the same for all rows of a tile.
class TailFactors {
 public:
  void Set(const std::int32_t* exponents, RowMask seen, std::int32_t largest) {
    if (seen == seen_ && largest == largest_) return;
    seen_ = seen;
    largest_ = largest;
    for (std::size_t j = 0; j < factors_.size(); ++j) {
      factors_[j] = (seen >> j & 1) == 0 ? 0.0F : ExponentFactor(exponents[j], largest);
    }
  }
  const float* data() const { return factors_.data(); }

 private:
  RowMask seen_ = 0;
  std::int32_t largest_ = kNoExponent;
  std::array<float, kBlockTokens> factors_ = {};
};

}  // namespace

void LinearAttendPlan::Reset(const QueryGroup& group, const AnswerView& answer) {
  tiles_.Reset(group);
  answer_ = answer;
}

const LinearSummary& LinearAttendPlan::sealed() const {
  return static_cast<const LinearSummary&>(*tiles_.group().sealed);
}

void LinearAttendPlan::VisibleExponents(const QueryTile& tile, Exponents& exponents) const {
  const TailView& tail = tiles_.group().tail;
  const std::int32_t* rows =
      tail.rows == 0 ? nullptr : tail.tail->exponents.data() + tile.head * kBlockTokens;
  // Mostly all rows of a tile see the same tail.
  RowMask last_seen = 0;
  std::int32_t largest = sealed().exponent(tile.head);
  tiles_.ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
    const RowMask seen = tiles_.VisibleTail(query);
    if (seen != last_seen) {
      largest = std::max(sealed().exponent(tile.head), LargestExponent(rows, seen));
      last_seen = seen;
    }
    exponents[static_cast<std::size_t>(i)] = largest;
  });
}

void LinearAttendPlan::AddTail(const QueryTile& tile, const float* features,
                               const Exponents& visible, bool accumulate, float* sums,
                               Scratch& scratch) const {
  const LinearDims& dims = layer_.dims;
  const LayerShape& shape = layer_.shape;
  const Tail& tail = *tiles_.group().tail.tail;
  const std::int64_t width = OpenBlockWidth(tile.tail_rows);
  const float* keys_t =
      OpenKeys(dims, tail.features.data() + tile.head * kBlockTokens * dims.features,
               tile.tail_rows, scratch);
  const float* values = OpenValues(dims, tail.values.data() + tile.head * shape.value_dim,
                                   shape.value_row(), tile.tail_rows, scratch);

  float* scores = scratch.Take(tile.padded_rows * kBlockTokens);
  GemmNN(tile.padded_rows, width, dims.features, features, dims.features, keys_t, kBlockTokens,
         /*accumulate=*/false, scores, kBlockTokens);
  const std::int32_t* exponents =
      layer_.map->scaled() ? tail.exponents.data() + tile.head * kBlockTokens : nullptr;
  TailFactors factors;
  tiles_.ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
    const RowMask rows_seen = tiles_.VisibleTail(query);
    float* row = scores + i * kBlockTokens;
    if (rows_seen != FirstRows(width)) KeepColumns(rows_seen, width, row);
    if (exponents == nullptr) return;
    factors.Set(exponents, rows_seen, visible[static_cast<std::size_t>(i)]);
    MultiplyRow(factors.data(), width, row);
  });
  GemmNN(tile.padded_rows, dims.summary_columns, width, scores, kBlockTokens, values,
         dims.summary_columns, accumulate, sums, dims.summary_columns);
}

bool LinearAttendPlan::Run(std::int64_t chain, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const LinearDims& dims = layer_.dims;
  const QueryTile tile = tiles_.Tile(chain);
  const bool any_sealed = sealed().unmasked() > 0;

  Exponents query_exponents = {};
  Exponents visible = {};
  const float* features = tiles_.Features(tile, query_exponents, scratch);
  const bool scaled = layer_.map->scaled();
  if (scaled) VisibleExponents(tile, visible);
  float* sums = scratch.Take(tile.padded_rows * dims.summary_columns);
  if (any_sealed) {
    GemmNN(tile.padded_rows, dims.summary_columns, dims.features, features, dims.features,
           sealed().summary(tile.head), dims.summary_columns, /*accumulate=*/false, sums,
           dims.summary_columns);
  }
  for (std::int64_t i = 0; scaled && any_sealed && i < tile.rows; ++i) {
    const std::int32_t largest = visible[static_cast<std::size_t>(i)];
    if (largest == sealed().exponent(tile.head)) continue;  // mostly; the factor is 1
    float* row = sums + i * dims.summary_columns;
    ScaleRow(row, ExponentFactor(sealed().exponent(tile.head), largest), row, dims.summary_columns);
  }
  if (tile.tail_rows > 0) {
    AddTail(tile, features, visible, any_sealed, sums, scratch);
  } else if (!any_sealed) {
    std::fill_n(sums, tile.padded_rows * dims.summary_columns, 0.0F);
  }
  tiles_.ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t query_head) {
    const auto row = static_cast<std::size_t>(i);
    const bool any = scaled && visible[row] != kNoExponent;
    WriteAnswerRow(layer_,
                   {query, query_head, !any_sealed && tiles_.VisibleTail(query) == 0,
                    any ? query_exponents[row] + visible[row] : 0, sums + i * dims.summary_columns},
                   answer_);
  });
  return true;
}

}  // namespace attnd::engine
