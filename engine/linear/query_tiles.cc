#include "engine/linear/query_tiles.h"

#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// A millisecond at 50 GFLOP/s.
constexpr std::int64_t kMaxTileFlops = 50'000'000;

// The largest row count of engine/gemm.h whose products stay within kMaxTileFlops.
std::int64_t TileRows(const LinearDims& dims, std::int64_t other_flops) {
  const std::int64_t row_flops =
      other_flops + 2 * (dims.features * dims.summary_columns +
                         kBlockTokens * (dims.features + dims.summary_columns));
  std::int64_t rows = kGemmRowBuckets[0];
  for (const std::int64_t bucket : kGemmRowBuckets) {
    if (bucket * row_flops <= kMaxTileFlops) rows = bucket;
  }
  return rows;
}

std::int64_t MapFlops(const LinearLayer& layer) {
  return layer.map == nullptr ? 0 : 2 * layer.map->operations();
}

}  // namespace

QueryTiles::QueryTiles(const LinearLayer& layer, std::int64_t row_flops)
    : layer_(layer), tile_rows_(TileRows(layer.dims, row_flops + MapFlops(layer))) {}

void QueryTiles::Reset(const QueryGroup& group) {
  group_ = group;
  head_rows_ = group.count * layer_.shape.group_size();
  head_tiles_ = (head_rows_ + tile_rows_ - 1) / tile_rows_;
}

QueryTile QueryTiles::Tile(std::int64_t chain) const {
  QueryTile tile;
  tile.head = chain / head_tiles_;
  tile.first = chain % head_tiles_ * tile_rows_;
  tile.rows = std::min(tile_rows_, head_rows_ - tile.first);
  tile.padded_rows = GemmPaddedRows(tile.rows);
  // Cuts do not fall from one query to the next.
  tile.tail_rows = Cut((tile.first + tile.rows - 1) / layer_.shape.group_size());
  return tile;
}

float* QueryTiles::Features(const QueryTile& tile, Exponents& exponents, Scratch& scratch) const {
  const std::int64_t ld = layer_.dims.features;
  float* features = scratch.Take(tile.padded_rows * ld);
  {
    const Scratch::Frame frame(scratch);
    if (layer_.map->per_head()) {
      MapByHead(tile, features, exponents, scratch);
    } else {
      MapTogether(tile, features, exponents, scratch);
    }
  }
  const std::int64_t c = layer_.map->feature_dim();
  for (std::int64_t i = 0; c < ld && i < tile.rows; ++i) {
    std::fill(features + i * ld + c, features + (i + 1) * ld, 0.0F);
  }
  std::fill(features + tile.rows * ld, features + tile.padded_rows * ld, 0.0F);
  return features;
}

// `to` becomes scale * q.
void QueryTiles::ScaleQuery(std::int64_t query, std::int64_t query_head, float* to) const {
  const LayerShape& shape = layer_.shape;
  const std::int64_t d = shape.key_dim;
  ScaleRow(group_.queries + query * shape.query_row() + query_head * d, shape.scale, to, d);
}

// All rows at once.
void QueryTiles::MapTogether(const QueryTile& tile, float* features, Exponents& exponents,
                             Scratch& scratch) const {
  const FeatureMap& map = *layer_.map;
  const bool positional = map.positional();
  const std::int64_t d = layer_.shape.key_dim;
  float* scaled = scratch.Take(tile.rows * d);
  std::array<std::int64_t, kGemmMaxRows> positions;
  ForRows(tile, [&](std::int64_t i, std::int64_t query, std::int64_t query_head) {
    ScaleQuery(query, query_head, scaled + i * d);
    if (positional) positions[static_cast<std::size_t>(i)] = group_.position(query);
  });
  map.MapQueries({scaled, d, tile.rows, 0, positional ? positions.data() : nullptr},
                 {features, layer_.dims.features, exponents.data()}, scratch);
}

// The rows of one query head at a time, which stand `group` apart: rows are query-major.
void QueryTiles::MapByHead(const QueryTile& tile, float* features, Exponents& exponents,
                           Scratch& scratch) const {
  const FeatureMap& map = *layer_.map;
  const bool positional = map.positional();
  const std::int64_t d = layer_.shape.key_dim;
  const std::int64_t ld = layer_.dims.features;
  const std::int64_t group = layer_.shape.group_size();
  float* scaled = scratch.Take((tile.rows + group - 1) / group * d);
  std::array<std::int64_t, kGemmMaxRows> positions;
  Exponents head_exponents;
  for (std::int64_t first = 0; first < std::min(group, tile.rows); ++first) {
    const std::int64_t query = (tile.first + first) / group;
    const std::int64_t query_head = tile.head * group + (tile.first + first) % group;
    const std::int64_t count = (tile.rows - first + group - 1) / group;
    for (std::int64_t i = 0; i < count; ++i) {
      ScaleQuery(query + i, query_head, scaled + i * d);
      if (positional) positions[static_cast<std::size_t>(i)] = group_.position(query + i);
    }
    map.MapQueries({scaled, d, count, query_head, positional ? positions.data() : nullptr},
                   {features + first * ld, group * ld, head_exponents.data()}, scratch);
    for (std::int64_t i = 0; map.scaled() && i < count; ++i) {
      exponents[static_cast<std::size_t>(first + i * group)] =
          head_exponents[static_cast<std::size_t>(i)];
    }
  }
}

}  // namespace attnd::engine
