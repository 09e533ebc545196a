// One block of 64 keys for a tile of query rows: scores, the online-softmax step, and the weighted
// sum of values. Every path of the exact engine goes through here.
//
// Two ways to the same bits (the chain contract of engine/gemm.h): a product for the whole tile,
// or, for a few rows, one row at a time at the speed of memory. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_EXACT_ATTEND_BLOCK_H_
#define ATTND_ENGINE_EXACT_ATTEND_BLOCK_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/softmax_sums.h"
#include "engine/exact/top_keys.h"

namespace attnd::engine {

// Which keys of the block each row sees: row r's are rows[r * stride]; stride 0: all rows the same.
struct VisibleKeys {
  const RowMask* rows = nullptr;
  std::int64_t stride = 0;
};

// The rows of a tile while they pass over blocks. Buffers have sums.rows = PaddedTileRows(rows)
// rows; the ones from `rows` on are padding. Borrowed.
struct TileWork {
  std::int64_t rows = 0;
  std::int64_t key_dim = 0;
  const float* queries = nullptr;  // [sums.rows, key_dim], scaled; padding is zeros
  float* scores = nullptr;         // [sums.rows, 64]
  float* corrections = nullptr;    // [sums.rows]
  float* widened = nullptr;        // one block in f32; may be null where blocks are f32
  SoftmaxSums sums;
  TopKeys* top = nullptr;  // null: not wanted
};

// Up to how many rows go one at a time: 12, or 0 where the products do not keep the chain contract.
// Measured on Zen 4, microseconds per block with d = 64, row by row against products: 12 rows 2.7
// against 3.5 (bf16: 3.8 against 3.9), 16 rows 3.5 against 3.4 (5.1 against 3.8); d = 128 is alike.
std::int64_t FewRows();

// The rows that the products of a tile of `rows` rows touch; rows <= kGemmMaxRows.
std::int64_t PaddedTileRows(std::int64_t rows);

// GemmNN for the rows of a tile: C [rows x n] = A [rows x k] * B, plus the old C when `accumulate`.
// Rows of A up to PaddedTileRows(rows) are readable, rows of C writable.
void TileProduct(std::int64_t rows, std::int64_t n, std::int64_t k, const float* a,
                 std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c,
                 std::int64_t ldc);

// Adds the block, whose first token stands at `position`, to the tile's sums. `next` is the block
// that comes after it, to be fetched from memory meanwhile, or has null pointers.
template <typename Element>
void AttendBlock(const BlockView<Element>& block, const BlockView<Element>& next,
                 const VisibleKeys& visible, std::int64_t position, const TileWork& work);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_ATTEND_BLOCK_H_
