// The k keys of largest score of every query row, kept while blocks of scores pass by.
//
// Keys are kept by descending score, of equal scores the earlier position first; where the list is
// full an equal score of a later position does not displace, so that what is kept does not depend
// on how the context was cut or in which order its pieces were offered. Unused entries are (-inf,
// -1). Borrows its memory. Not synchronised; cannot fail.
#ifndef ATTND_ENGINE_EXACT_TOP_KEYS_H_
#define ATTND_ENGINE_EXACT_TOP_KEYS_H_

#include <cstdint>

#include "engine/block.h"
#include "engine/engine.h"
#include "engine/exact/row_tile.h"
#include "engine/exact/softmax_sums.h"
#include "engine/scratch.h"

namespace attnd::engine {

struct TopKeys {
  std::int64_t rows = 0;
  std::int64_t k = 0;
  float* scores = nullptr;            // [rows, k]
  std::int64_t* positions = nullptr;  // [rows, k]
  // Null: row r of a block's scores has list r, key j stands j after the block's position. Else
  // list lists[r], and places[j] after it.
  const std::int32_t* lists = nullptr;
  const std::int32_t* places = nullptr;

  void Clear();

  // Offers scores [tile rows, 64] of the block whose first token stands at `position`. Row r's
  // visible keys are valid[r * valid_stride].
  void OfferBlock(const float* block_scores, std::int64_t tile_rows, const RowMask* valid,
                  std::int64_t valid_stride, std::int64_t position);

  // Offers what `later` kept of a later piece of the context.
  void OfferAll(const TopKeys& later);
};

// Writes the tile's rows to answer.top_positions and top_weights: weights exp(score - max) / sum,
// descending, of equal weights the earlier position first; -1 and 0 where there are fewer keys and
// in rows that are not kOk.
void WriteTopKeys(const TopKeys& top, const SoftmaxSums& sums, const RowTile& tile,
                  std::int64_t value_dim, const AnswerView& answer);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EXACT_TOP_KEYS_H_
