// Which query rows a tile holds. All query heads of a group read the same keys, so the rows of one
// kv-head are (query, head in group) pairs, in that order; a tile is a run of at most kGemmMaxRows
// of them. Plain values; thread-safe.
#ifndef ATTND_ENGINE_EXACT_ROW_TILE_H_
#define ATTND_ENGINE_EXACT_ROW_TILE_H_

#include <cstdint>

namespace attnd::engine {

struct RowTile {
  std::int64_t kv_head = 0;
  std::int64_t first = 0;  // among the kv-head's rows
  std::int64_t rows = 0;
  std::int64_t group_size = 1;
  std::int64_t query_heads = 1;

  std::int64_t query(std::int64_t row) const { return (first + row) / group_size; }

  // Row of [n, query_heads] tensors.
  std::int64_t tensor_row(std::int64_t row) const {
    return query(row) * query_heads + kv_head * group_size + (first + row) % group_size;
  }
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_ROW_TILE_H_
