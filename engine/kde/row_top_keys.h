// The keys of largest weight of one query row for plans that do not score all keys themselves: a
// pass of its own over all keys, at half the price of exact attention.
//
// Keeps its memory between rows. One thread at a time. Cannot fail but for std::bad_alloc in
// Reset().
#ifndef ATTND_ENGINE_KDE_ROW_TOP_KEYS_H_
#define ATTND_ENGINE_KDE_ROW_TOP_KEYS_H_

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "engine/exact/key_value_state.h"
#include "engine/exact/row_tile.h"

namespace attnd::engine {

class RowTopKeys {
 public:
  void Reset(std::int64_t k);

  // Offers the valid keys of a block whose first token stands at `position`. `query` [key_dim] is
  // scaled.
  void Offer(const float* query, std::int64_t key_dim, const BlockView<float>& block,
             std::int64_t position);

  // Writes the one row of `tile`, with weights exp(score - max) / sum.
  void Write(float max, float sum, RowFlag flag, const RowTile& tile, const AnswerView& answer);

  static std::int64_t Bytes(std::int64_t k) {
    return k * static_cast<std::int64_t>(sizeof(float) + sizeof(std::int64_t));
  }

 private:
  std::vector<float> scores_;
  std::vector<std::int64_t> positions_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_ROW_TOP_KEYS_H_
