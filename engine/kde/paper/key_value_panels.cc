#include "engine/kde/paper/key_value_panels.h"

#include <algorithm>
#include <cmath>

#include "engine/gemm.h"
#include "engine/simd/maps.h"
#include "engine/simd/softmax.h"
#include "engine/tensor.h"

namespace attnd::engine {

KeyValuePanels::KeyValuePanels(std::int64_t count, Rows keys, Rows values)
    : keys_(count, keys.dim),
      padded_value_dim_(RoundUp(values.dim, kGemmColumnMultiple)),
      values_(
          AlignedBuffer<float>::Uninitialized(keys_.panels() * kPanelKeys * padded_value_dim_)) {}

void KeyValuePanels::Pack(std::int64_t panel, Rows keys, Rows values, const std::int64_t* chosen,
                          const double* biases) {
  keys_.Pack(panel, keys, chosen, biases);
  const std::int64_t first = panel * kPanelKeys;
  float* data = values_.data() + first * padded_value_dim_;
  std::fill_n(data, kPanelKeys * padded_value_dim_, 0.0F);
  for (std::int64_t i = 0; i < std::min(kPanelKeys, keys_.keys() - first); ++i) {
    std::copy_n(values.row(chosen[first + i]), values.dim, data + i * padded_value_dim_);
  }
}

void KeyValuePanels::PackAll(Rows keys, Rows values, const std::int64_t* chosen,
                             const double* biases) {
  for (std::int64_t p = 0; p < keys_.panels(); ++p) Pack(p, keys, values, chosen, biases);
}

void KeyValuePanels::Add(std::int64_t panel, RowMask visible, const Tile& tile,
                         SoftmaxSums& sums) const {
  keys_.Scores(tile.queries, sums.rows, panel, tile.scores);
  OnlineSoftmaxBlock(tile.scores, tile.rows, &visible, 0, sums.max, sums.sum, tile.corrections);
  RescaleRows(sums.acc, tile.rows, padded_value_dim_, tile.corrections);
  GemmNN(sums.rows, padded_value_dim_, kPanelKeys, tile.scores, kPanelKeys,
         values_.data() + panel * kPanelKeys * padded_value_dim_, padded_value_dim_,
         /*accumulate=*/true, sums.acc, padded_value_dim_);
}

bool DivideSums(const SoftmaxSums& sums, std::int64_t row, double log_divisor,
                std::int64_t value_dim, float* output) {
  const double factor = std::exp(static_cast<double>(sums.max[row]) - log_divisor);
  const float* acc = sums.acc + row * sums.padded_value_dim;
  for (std::int64_t c = 0; c < value_dim; ++c) {
    output[c] = static_cast<float>(factor * static_cast<double>(acc[c]));
  }
  if (std::isfinite(sums.sum[row]) && AllFinite(output, value_dim)) return true;
  std::fill_n(output, value_dim, 0.0F);
  return false;
}

}  // namespace attnd::engine
