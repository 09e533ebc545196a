#include "engine/kde/key_value_panels.h"

#include <algorithm>
#include <cmath>

#include "engine/gemm.h"
#include "engine/simd/maps.h"
#include "engine/simd/softmax.h"
#include "engine/tensor.h"

namespace attnd::engine {

KeyValuePanels::KeyValuePanels(Rows keys, Rows values, std::span<const std::int64_t> chosen,
                               const double* biases)
    : keys_(keys, chosen, biases),
      padded_value_dim_(RoundUp(values.dim, kGemmColumnMultiple)),
      values_(keys_.panels() * kPanelKeys * padded_value_dim_) {
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    std::copy_n(values.row(chosen[i]), values.dim,
                values_.data() + static_cast<std::int64_t>(i) * padded_value_dim_);
  }
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
