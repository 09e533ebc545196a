#include "engine/exact/top_keys.h"

#include <algorithm>
#include <limits>

#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// Inserts into one row's k entries, sorted as TopKeys says, if the score is large enough.
void Offer(float score, std::int64_t position, std::int64_t k, float* scores,
           std::int64_t* positions) {
  const auto above = [&](std::int64_t entry) {
    return score > scores[entry] || (score == scores[entry] && position < positions[entry]);
  };
  if (!above(k - 1)) return;
  std::int64_t place = k - 1;
  for (; place > 0 && above(place - 1); --place) {
    scores[place] = scores[place - 1];
    positions[place] = positions[place - 1];
  }
  scores[place] = score;
  positions[place] = position;
}

bool AnyAbove(const float* scores, float bound) {
  int above = 0;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) above |= scores[j] >= bound ? 1 : 0;
  return above != 0;
}

// Rounding can make weights equal, and by an ulp swap them, where the scores differ.
void SortByWeight(std::int64_t k, float* weights, std::int64_t* positions) {
  for (std::int64_t i = 1; i < k; ++i) {
    for (std::int64_t j = i; j > 0; --j) {
      const bool after = weights[j] < weights[j - 1] ||
                         (weights[j] == weights[j - 1] && positions[j] > positions[j - 1]);
      if (after) break;
      std::swap(weights[j], weights[j - 1]);
      std::swap(positions[j], positions[j - 1]);
    }
  }
}

}  // namespace

void TopKeys::Clear() {
  std::fill_n(scores, rows * k, -std::numeric_limits<float>::infinity());
  std::fill_n(positions, rows * k, std::int64_t{-1});
}

void TopKeys::OfferBlock(const float* block_scores, std::int64_t tile_rows, const RowMask* valid,
                         std::int64_t valid_stride, std::int64_t position) {
  for (std::int64_t r = 0; r < tile_rows; ++r) {
    const float* row = block_scores + r * kBlockTokens;
    const std::int64_t list = (lists == nullptr ? r : lists[r]) * k;
    float* kept_scores = scores + list;
    if (!AnyAbove(row, kept_scores[k - 1])) continue;
    const RowMask visible = valid[r * valid_stride];
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      if (((visible >> j) & 1U) == 0) continue;
      Offer(row[j], position + (places == nullptr ? j : places[j]), k, kept_scores,
            positions + list);
    }
  }
}

void TopKeys::OfferAll(const TopKeys& later) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = r * k; i < (r + 1) * k && later.positions[i] >= 0; ++i) {
      Offer(later.scores[i], later.positions[i], k, scores + r * k, positions + r * k);
    }
  }
}

void WriteTopKeys(const TopKeys& top, const SoftmaxSums& sums, const RowTile& tile,
                  std::int64_t value_dim, const AnswerView& answer) {
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    float* weights = answer.top_weights + tile.tensor_row(r) * top.k;
    std::int64_t* positions = answer.top_positions + tile.tensor_row(r) * top.k;
    const float* scores = top.scores + r * top.k;
    std::int64_t kept = 0;
    if (FlagOfRow(sums, r, value_dim) == RowFlag::kOk) {
      for (; kept < top.k && top.positions[r * top.k + kept] >= 0; ++kept) {
        positions[kept] = top.positions[r * top.k + kept];
        weights[kept] = scores[kept] - sums.max[r];
      }
      Exp(weights, weights, kept);
      for (std::int64_t i = 0; i < kept; ++i) weights[i] /= sums.sum[r];
      SortByWeight(kept, weights, positions);
    }
    std::fill(positions + kept, positions + top.k, std::int64_t{-1});
    std::fill(weights + kept, weights + top.k, 0.0F);
  }
}

}  // namespace attnd::engine
