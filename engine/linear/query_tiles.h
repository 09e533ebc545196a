// How a group of queries of the linear family is divided into chains, and the features of a tile.
//
// A chain is one kv-head and a tile of (query, head in group) rows, query-major, and one quantum.
// The tile is as large as about a millisecond of arithmetic allows. A product has at least 4 rows:
// with the most sums that a layer may have, 2^23, they are 72 million operations and read 32 MB,
// which is about two.
//
// Threads: after Reset() any.
#ifndef ATTND_ENGINE_LINEAR_QUERY_TILES_H_
#define ATTND_ENGINE_LINEAR_QUERY_TILES_H_

#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/engine.h"
#include "engine/gemm.h"
#include "engine/linear/linear_layer.h"
#include "engine/scratch.h"

namespace attnd::engine {

// One chain's rows [first, first + rows) of kv-head `head`.
struct QueryTile {
  std::int64_t head;
  std::int64_t first;
  std::int64_t rows;
  std::int64_t padded_rows;  // a row count of engine/gemm.h
  std::int64_t tail_rows;    // the most tail rows that one of them sees
};

class QueryTiles {
 public:
  // By row of a tile.
  using Exponents = std::array<std::int32_t, kGemmMaxRows>;

  // The layer must outlive this. `row_flops`: what a row costs beside its products.
  explicit QueryTiles(const LinearLayer& layer, std::int64_t row_flops = 0);

  void Reset(const QueryGroup& group);
  const QueryGroup& group() const { return group_; }

  std::int64_t chains() const { return layer_.shape.kv_heads * head_tiles_; }
  QueryTile Tile(std::int64_t chain) const;

  // Rows of the tail that a query sees, and the unmasked ones among them.
  std::int64_t Cut(std::int64_t query) const {
    return std::min(group_.cut(query), group_.tail.rows);
  }
  RowMask VisibleTail(std::int64_t query) const {
    return group_.tail.valid & FirstRows(Cut(query));
  }

  // Calls use(i, query, query_head) for the tile's rows i in order. (A 64-bit division per row and
  // use costs as much as the row's guard.)
  template <typename Use>
  void ForRows(const QueryTile& tile, const Use& use) const {
    const std::int64_t group = layer_.shape.group_size();
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

  // phi(scale * q) of the tile's rows, [padded_rows x dims.features], zeros beyond c and beyond the
  // rows. Writes `exponents` if the map is scaled. Valid as long as the scratch frame.
  float* Features(const QueryTile& tile, Exponents& exponents, Scratch& scratch) const;

 private:
  void ScaleQuery(std::int64_t query, std::int64_t query_head, float* to) const;
  void MapTogether(const QueryTile& tile, float* features, Exponents& exponents,
                   Scratch& scratch) const;
  void MapByHead(const QueryTile& tile, float* features, Exponents& exponents,
                 Scratch& scratch) const;

  const LinearLayer& layer_;
  const std::int64_t tile_rows_;
  QueryGroup group_;
  std::int64_t head_rows_ = 0;
  std::int64_t head_tiles_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_QUERY_TILES_H_
