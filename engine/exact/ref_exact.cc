#include "engine/exact/ref_exact.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace attnd::engine {

double RefExactRow(const LayerShape& shape, const float* query, std::int64_t query_head,
                   const float* keys, const float* values, const std::uint8_t* masked,
                   std::int64_t tokens, double* output) {
  const std::int64_t kv_head = query_head / shape.group_size();
  std::vector<double> scores(static_cast<std::size_t>(tokens),
                             -std::numeric_limits<double>::infinity());
  double max = -std::numeric_limits<double>::infinity();
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (masked != nullptr && masked[t] != 0) continue;
    const float* key = keys + t * shape.key_row() + kv_head * shape.key_dim;
    double score = 0;
    for (std::int64_t i = 0; i < shape.key_dim; ++i) {
      score += static_cast<double>(query[i] * shape.scale) * static_cast<double>(key[i]);
    }
    scores[static_cast<std::size_t>(t)] = score;
    max = std::max(max, score);
  }
  std::fill_n(output, shape.value_dim, 0.0);
  if (std::isinf(max)) return max;
  double sum = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const double weight = std::exp(scores[static_cast<std::size_t>(t)] - max);
    const float* value = values + t * shape.value_row() + kv_head * shape.value_dim;
    sum += weight;
    for (std::int64_t c = 0; c < shape.value_dim; ++c) {
      output[c] += weight * static_cast<double>(value[c]);
    }
  }
  for (std::int64_t c = 0; c < shape.value_dim; ++c) output[c] /= sum;
  return max + std::log(sum);
}

}  // namespace attnd::engine
