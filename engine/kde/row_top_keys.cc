#include "engine/kde/row_top_keys.h"

#include <array>
#include <cstddef>
#include <limits>

#include "engine/block.h"
#include "engine/exact/softmax_sums.h"
#include "engine/exact/top_keys.h"
#include "engine/simd/one_query.h"

namespace attnd::engine {

void RowTopKeys::Reset(std::int64_t k) {
  scores_.assign(static_cast<std::size_t>(k), -std::numeric_limits<float>::infinity());
  positions_.assign(static_cast<std::size_t>(k), -1);
}

void RowTopKeys::Offer(const float* query, std::int64_t key_dim, const BlockView<float>& block,
                       std::int64_t position) {
  if (block.valid == 0) return;
  alignas(64) std::array<float, kBlockTokens> scores;
  ScoresOneQuery(query, key_dim, block.keys_t, scores.data(), nullptr);
  TopKeys top;
  top.rows = 1;
  top.k = static_cast<std::int64_t>(scores_.size());
  top.scores = scores_.data();
  top.positions = positions_.data();
  top.OfferBlock(scores.data(), 1, &block.valid, 0, position);
}

void RowTopKeys::Write(float max, float sum, RowFlag flag, const RowTile& tile,
                       const AnswerView& answer) {
  TopKeys top;
  top.rows = 1;
  top.k = static_cast<std::int64_t>(scores_.size());
  top.scores = scores_.data();
  top.positions = positions_.data();
  std::array<float, 2> memory = {};
  const SoftmaxSums sums(memory.data(), 1, 0);
  sums.max[0] = max;
  sums.sum[0] = flag == RowFlag::kOk ? sum : std::numeric_limits<float>::quiet_NaN();
  WriteTopKeys(top, sums, tile, 0, answer);
}

}  // namespace attnd::engine
