#include "engine/linear/attend_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "engine/gemm.h"
#include "engine/linear/denominator_guard.h"
#include "engine/linear/linear_engine.h"
#include "engine/linear/row_exponents.h"
#include "engine/linear/row_loops.h"
#include "engine/simd/maps.h"
#include "engine/simd/transpose.h"

namespace attnd::engine {
namespace {

// A millisecond at 50 GFLOP/s.
constexpr std::int64_t kMaxTileFlops = 50'000'000;

// The largest row count of engine/gemm.h whose products stay within kMaxTileFlops.
std::int64_t TileRows(const LinearDims& dims, const FeatureMap& map) {
  const std::int64_t row_flops =
      2 * (dims.features * dims.summary_columns +
           kBlockTokens * (dims.features + dims.summary_columns) + map.row_operations());
  std::int64_t rows = kGemmRowBuckets[0];
  for (const std::int64_t bucket : kGemmRowBuckets) {
    if (bucket * row_flops <= kMaxTileFlops) rows = bucket;
  }
  return rows;
}

}  // namespace

LinearAttendPlan::LinearAttendPlan(const LinearEngine& engine)
    : engine_(engine), tile_rows_(TileRows(engine.dims(), engine.map())) {}

void LinearAttendPlan::Reset(const QueryGroup& group, const AnswerView& answer) {
  group_ = group;
  answer_ = answer;
  head_rows_ = group.count * engine_.shape().group_size();
  head_tiles_ = (head_rows_ + tile_rows_ - 1) / tile_rows_;
  chains_ = engine_.shape().kv_heads * head_tiles_;
}

LinearAttendPlan::Tile LinearAttendPlan::TileOf(std::int64_t chain) const {
  Tile tile;
  tile.head = chain / head_tiles_;
  tile.first = chain % head_tiles_ * tile_rows_;
  tile.rows = std::min(tile_rows_, head_rows_ - tile.first);
  tile.padded_rows = GemmPaddedRows(tile.rows);
  // Cuts do not fall from one query to the next.
  const std::int64_t last_query = (tile.first + tile.rows - 1) / engine_.shape().group_size();
  tile.tail_rows = std::min(group_.cut(last_query), group_.tail.rows);
  return tile;
}

RowMask LinearAttendPlan::VisibleTail(std::int64_t query) const {
  return group_.tail.valid & FirstRows(std::min(group_.cut(query), group_.tail.rows));
}

template <typename Use>
void LinearAttendPlan::ForRows(const Tile& tile, const Use& use) const {
  const std::int64_t group = engine_.shape().group_size();
  const std::int64_t first_head = tile.head * group;
  std::int64_t query = tile.first / group;
  std::int64_t in_group = tile.first % group;
  for (std::int64_t i = 0; i < tile.rows; ++i) {
    use(i, query, first_head + in_group);
    if (++in_group == group) {
      in_group = 0;
      ++query;
    }
  }
}

// phi(scale * q) of the tile's rows, [padded_rows x features].
const float* LinearAttendPlan::QueryFeatures(const Tile& tile, Exponents& exponents,
                                             Scratch& scratch) const {
  const LayerShape& shape = engine_.shape();
  const std::int64_t d = shape.key_dim;
  const std::int64_t ld = engine_.dims().features;
  float* features = scratch.Take(tile.padded_rows * ld);
  {
    const Scratch::Frame frame(scratch);
    float* scaled = scratch.Take(tile.rows * d);
    ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t query_head) {
      ScaleRow(group_.queries + query * shape.query_row() + query_head * d, shape.scale,
               scaled + i * d, d);
    });
    MapTile(tile, scaled, features, exponents, scratch);
  }
  const std::int64_t c = engine_.map().feature_dim();
  for (std::int64_t i = 0; c < ld && i < tile.rows; ++i) {
    std::fill(features + i * ld + c, features + (i + 1) * ld, 0.0F);
  }
  std::fill(features + tile.rows * ld, features + tile.padded_rows * ld, 0.0F);
  return features;
}

// Maps all rows at once, or, where heads have parameters of their own, those of one query head at a
// time.
void LinearAttendPlan::MapTile(const Tile& tile, const float* scaled, float* features,
                               Exponents& exponents, Scratch& scratch) const {
  const FeatureMap& map = engine_.map();
  const std::int64_t d = engine_.shape().key_dim;
  const std::int64_t ld = engine_.dims().features;
  std::array<std::int64_t, kGemmMaxRows> positions;
  if (map.positional()) {
    ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
      positions[static_cast<std::size_t>(i)] = group_.position(query);
    });
  }
  if (!map.per_head()) {
    map.MapQueries({scaled, d, tile.rows, 0, map.positional() ? positions.data() : nullptr},
                   {features, ld, exponents.data()}, scratch);
    return;
  }
  // Rows are query-major: those of one query head stand `group` apart.
  const std::int64_t group = engine_.shape().group_size();
  std::array<std::int64_t, kGemmMaxRows> head_positions;
  Exponents head_exponents;
  for (std::int64_t first = 0; first < std::min(group, tile.rows); ++first) {
    const std::int64_t query_head = tile.head * group + (tile.first + first) % group;
    const auto row = [&](std::int64_t i) { return static_cast<std::size_t>(first + i * group); };
    const std::int64_t count = (tile.rows - first + group - 1) / group;
    for (std::int64_t i = 0; map.positional() && i < count; ++i) {
      head_positions[static_cast<std::size_t>(i)] = positions[row(i)];
    }
    map.MapQueries({scaled + first * d, group * d, count, query_head,
                    map.positional() ? head_positions.data() : nullptr},
                   {features + first * ld, group * ld, head_exponents.data()}, scratch);
    for (std::int64_t i = 0; map.scaled() && i < count; ++i) {
      exponents[row(i)] = head_exponents[static_cast<std::size_t>(i)];
    }
  }
}

void LinearAttendPlan::VisibleExponents(const Tile& tile, Exponents& exponents) const {
  const auto& sealed = static_cast<const LinearState&>(*group_.sealed);
  const std::int32_t* tail = group_.tail.rows == 0
                                 ? nullptr
                                 : group_.tail.tail->exponents.data() + tile.head * kBlockTokens;
  ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
    exponents[static_cast<std::size_t>(i)] =
        std::max(sealed.exponent(tile.head), LargestExponent(tail, VisibleTail(query)));
  });
}

// sums [padded_rows x summary_columns] (+)= a [V | 1].
void LinearAttendPlan::AddTail(const Tile& tile, const float* features, const Exponents& visible,
                               bool accumulate, float* sums, Scratch& scratch) const {
  const LinearDims& dims = engine_.dims();
  const LayerShape& shape = engine_.shape();
  const std::int64_t rows = tile.tail_rows;
  const std::int64_t width = RoundUp(rows, kGemmColumnMultiple);

  // Copies of the visible rows, zeros beyond: the layer's writer may be writing later rows.
  float* keys_t = scratch.Take(dims.features * kBlockTokens);
  TransposeKeys(group_.tail.tail->features.data() + tile.head * kBlockTokens * dims.features,
                dims.features, rows, dims.features, keys_t);
  for (std::int64_t i = 0; rows < width && i < dims.features; ++i) {
    std::fill(keys_t + i * kBlockTokens + rows, keys_t + i * kBlockTokens + width, 0.0F);
  }
  float* values = scratch.Take(width * dims.summary_columns);
  for (std::int64_t j = 0; j < rows; ++j) {
    float* row = values + j * dims.summary_columns;
    std::copy_n(
        group_.tail.tail->values.data() + j * shape.value_row() + tile.head * shape.value_dim,
        shape.value_dim, row);
    row[shape.value_dim] = 1.0F;
    std::fill(row + shape.value_dim + 1, row + dims.summary_columns, 0.0F);
  }
  std::fill(values + rows * dims.summary_columns, values + width * dims.summary_columns, 0.0F);

  float* scores = scratch.Take(tile.padded_rows * kBlockTokens);
  GemmNN(tile.padded_rows, width, dims.features, features, dims.features, keys_t, kBlockTokens,
         /*accumulate=*/false, scores, kBlockTokens);
  const bool scaled = engine_.scaled_features();
  ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t) {
    const RowMask rows_seen = VisibleTail(query);
    float* row = scores + i * kBlockTokens;
    if (rows_seen != FirstRows(width)) KeepColumns(rows_seen, width, row);
    if (!scaled) return;
    const std::int32_t* exponents = group_.tail.tail->exponents.data() + tile.head * kBlockTokens;
    for (RowMask left = rows_seen; left != 0; left &= left - 1) {
      const int j = std::countr_zero(left);
      row[j] *= ExponentFactor(exponents[j], visible[static_cast<std::size_t>(i)]);
    }
  });
  GemmNN(tile.padded_rows, dims.summary_columns, width, scores, kBlockTokens, values,
         dims.summary_columns, accumulate, sums, dims.summary_columns);
}

void LinearAttendPlan::WriteRow(std::int64_t query, std::int64_t query_head, const float* sums,
                                std::int32_t exponent) const {
  const LayerShape& shape = engine_.shape();
  const std::int64_t dv = shape.value_dim;
  const std::int64_t index = query * shape.query_heads + query_head;
  float* output = answer_.outputs + index * dv;
  float* numerator = answer_.numerators != nullptr ? answer_.numerators + index * dv : nullptr;

  const auto& sealed = static_cast<const LinearState&>(*group_.sealed);
  const bool empty = sealed.unmasked() == 0 && VisibleTail(query) == 0;
  Guarded guarded = {0.0F, RowFlag::kEmpty};
  // A quotient may overflow where its parts do not.
  bool sums_finite = true;
  if (!empty) {
    guarded = ApplyGuard(engine_.config(), sums[dv]);
    sums_finite = std::isfinite(sums[dv]);
    const bool finite = std::isfinite(guarded.divisor) && sums_finite;
    // A row that the guard zeroes must still have had a numerator.
    const float divisor = guarded.divisor > 0 ? guarded.divisor : 1.0F;
    bool output_finite = DivideRow(sums, divisor, dv, output) && finite;
    // A normalised output's powers of two cancel.
    for (std::int64_t i = 0; exponent != 0 && !engine_.config().normalized && i < dv; ++i) {
      output[i] = std::ldexp(output[i], exponent);
      output_finite = output_finite && std::isfinite(output[i]);
    }
    if (!output_finite) guarded = {0.0F, RowFlag::kOverflow};
    if (numerator != nullptr) sums_finite = DivideRow(sums, 1.0F, dv, numerator) && sums_finite;
  }
  if (!(guarded.divisor > 0)) std::fill_n(output, dv, 0.0F);
  // Nobody must merge a piece that overflowed as if it were empty.
  const float no_sum = empty ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  const bool no_sums = empty || !sums_finite;
  if (numerator != nullptr && no_sums) std::fill_n(numerator, dv, no_sum);
  if (answer_.denominators != nullptr) {
    answer_.denominators[index] = no_sums ? no_sum : sums[dv] + 0.0F;
  }
  if (answer_.exponents != nullptr) answer_.exponents[index] = no_sums ? 0 : exponent;
  if (answer_.flags != nullptr) answer_.flags[index] = static_cast<std::uint8_t>(guarded.flag);
}

bool LinearAttendPlan::Run(std::int64_t chain, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const LinearDims& dims = engine_.dims();
  const Tile tile = TileOf(chain);
  const auto& sealed = static_cast<const LinearState&>(*group_.sealed);
  const bool any_sealed = sealed.unmasked() > 0;

  Exponents query_exponents = {};
  Exponents visible = {};
  const float* features = QueryFeatures(tile, query_exponents, scratch);
  const bool scaled = engine_.scaled_features();
  if (scaled) VisibleExponents(tile, visible);
  float* sums = scratch.Take(tile.padded_rows * dims.summary_columns);
  if (any_sealed) {
    GemmNN(tile.padded_rows, dims.summary_columns, dims.features, features, dims.features,
           sealed.summary(tile.head), dims.summary_columns, /*accumulate=*/false, sums,
           dims.summary_columns);
  }
  for (std::int64_t i = 0; scaled && any_sealed && i < tile.rows; ++i) {
    float* row = sums + i * dims.summary_columns;
    const std::int32_t largest = visible[static_cast<std::size_t>(i)];
    ScaleRow(row, ExponentFactor(sealed.exponent(tile.head), largest), row, dims.summary_columns);
  }
  if (tile.tail_rows > 0) {
    AddTail(tile, features, visible, any_sealed, sums, scratch);
  } else if (!any_sealed) {
    std::fill_n(sums, tile.padded_rows * dims.summary_columns, 0.0F);
  }
  ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t query_head) {
    const auto row = static_cast<std::size_t>(i);
    const bool any = scaled && visible[row] != kNoExponent;
    WriteRow(query, query_head, sums + i * dims.summary_columns,
             any ? query_exponents[row] + visible[row] : 0);
  });
  return true;
}

}  // namespace attnd::engine
