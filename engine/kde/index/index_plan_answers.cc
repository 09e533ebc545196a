// How IndexPlan writes a tile's answers, and what is estimated of them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/kde/index/index_plan.h"

namespace attnd::engine {
namespace {
float OrIfNaN(float x, float other) { return std::isnan(x) ? other : x; }
}  // namespace

void IndexPlan::Write(const Tile& tile) const {
  WriteAnswerRows(tile.sums, tile.rows, shape_.value_dim, answer_);
  if (answer_.top_k > 0) WriteTopKeys(tile.top, tile.sums, tile.rows, shape_.value_dim, answer_);
  WriteEstimates(tile);
}

void IndexPlan::WriteEstimates(const Tile& tile) const {
  const EstimateView& view = answer_.estimates;
  std::int64_t raw_keys = 0;
  if (state_ != nullptr && view.keys_evaluated != nullptr) {
    for (const auto& block : state_->raw_blocks()) raw_keys += std::popcount(block->valid);
  }
  for (std::int64_t r = 0; r < tile.rows.rows; ++r) {
    const RowMasses& masses = tile.masses[r];
    const std::int64_t row = tile.rows.tensor_row(r);
    const bool index = !masses.complete;
    const auto max = static_cast<double>(tile.sums.max[r]);
    const auto sum = static_cast<double>(tile.sums.sum[r]);
    // From masses relative to the row's largest log mass to those relative to its largest score.
    const double factor = index ? std::exp(static_cast<double>(masses.max) - max) : 0.0;
    const double far = factor * static_cast<double>(masses.far);
    const double read = std::max(sum - far, 0.0);
    // Where arithmetic leaves its range nothing is known.
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (view.errors != nullptr) {
      view.errors[row] = index ? OrIfNaN(StatedErrorOf(tile, r), kInfinity) : 0.0F;
    }
    if (view.log_normalizer_bounds != nullptr) {
      float* bounds = view.log_normalizer_bounds + 2 * row;
      const auto bound = [&](float unread) {
        const double mass = read + factor * static_cast<double>(index ? unread : 0.0F);
        return static_cast<float>(max + std::log(mass));
      };
      bounds[0] = OrIfNaN(bound(masses.lower), -kInfinity);
      bounds[1] = OrIfNaN(bound(masses.upper), kInfinity);
    }
    if (view.exact_masses != nullptr) {
      view.exact_masses[row] = index ? OrIfNaN(static_cast<float>(read / sum), 0.0F) : 1.0F;
    }
    if (view.keys_evaluated != nullptr) {
      const std::int64_t head_row = group_.causal ? tile.rows.first + r : 0;
      view.keys_evaluated[row] = raw_keys +
                                 std::popcount(open_rows_[static_cast<std::size_t>(head_row)]) +
                                 masses.leaf_keys + masses.summaries;
    }
    if (view.paths != nullptr) {
      view.paths[row] = static_cast<std::uint8_t>(index ? AnswerPath::kIndex : AnswerPath::kExact);
    }
    if (view.calibrated != nullptr) {
      const bool calibrated = !index || FactorOf(tile).calibrated;
      view.calibrated[row] = calibrated ? 1 : 0;
    }
  }
}

}  // namespace attnd::engine
