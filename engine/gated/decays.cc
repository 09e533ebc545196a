#include "engine/gated/decays.h"

#include <algorithm>
#include <cmath>

#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

using Decay = UpdateRule::Decay;

}  // namespace

bool DecaysPerFeature(const LinearLayer& layer) {
  const UpdateRule& rule = layer.config.update;
  return rule.decay == Decay::kPerFeature ||
         (rule.decay == Decay::kConstant &&
          static_cast<std::int64_t>(rule.log_decays.size()) > layer.shape.kv_heads);
}

HeadDecays::HeadDecays(const LinearLayer& layer, const float* log_decays, RowMask valid,
                       std::int64_t rows, std::int64_t head)
    : layer_(layer), rows_(rows), per_feature_(DecaysPerFeature(layer)) {
  const UpdateRule& rule = layer.config.update;
  const std::int64_t numbers = per_feature_ ? layer.map->feature_dim() : 1;
  for (std::int64_t j = 0; j < rows; ++j) {
    const float* gate = nullptr;
    if (rule.decay == Decay::kConstant && (valid >> j & 1) != 0) {
      gate = rule.log_decays.data() + head * numbers;
    } else if (rule.decay == Decay::kPerToken || rule.decay == Decay::kPerFeature) {
      gate = log_decays + (j * layer.shape.kv_heads + head) * numbers;
    }
    gates_[static_cast<std::size_t>(j)] = gate;
  }
}

float HeadDecays::RowWeights(std::int64_t from, float* weights) const {
  float sum = 0;
  for (std::int64_t j = from; j >= 0; --j) {
    weights[j] = sum;
    if (const float* gate = gates_[static_cast<std::size_t>(j)]) sum += *gate;
  }
  Exp(weights, weights, from + 1);
  Exp(&sum, &sum, 1);
  return sum;
}

void HeadDecays::DecayRows(std::int64_t from, const float* features, float* decayed,
                           float* sealed) const {
  const std::int64_t ld = layer_.dims.features;
  if (!per_feature_) {
    std::array<float, kBlockTokens> weights;
    std::fill_n(sealed, ld, RowWeights(from, weights.data()));
    for (std::int64_t j = 0; j <= from; ++j) {
      ScaleRow(features + j * ld, weights[static_cast<std::size_t>(j)], decayed + j * ld, ld);
    }
    return;
  }
  const std::int64_t c = layer_.map->feature_dim();
  std::fill_n(sealed, ld, 0.0F);
  for (std::int64_t j = from; j >= 0; --j) {
    ScaleByExp(features + j * ld, sealed, decayed + j * ld, ld);
    if (const float* gate = gates_[static_cast<std::size_t>(j)]) AddRow(gate, sealed, c);
  }
  Exp(sealed, sealed, ld);
}

void HeadDecays::TotalFactors(double* factors) const {
  const std::int64_t ld = layer_.dims.features;
  const std::int64_t c = per_feature_ ? layer_.map->feature_dim() : 1;
  std::fill_n(factors, ld, 0.0);
  for (std::int64_t j = 0; j < rows_; ++j) {
    const float* gate = gates_[static_cast<std::size_t>(j)];
    for (std::int64_t i = 0; gate != nullptr && i < c; ++i) {
      factors[i] += static_cast<double>(gate[i]);
    }
  }
  for (std::int64_t i = 0; i < c; ++i) factors[i] = std::exp(factors[i]);
  if (!per_feature_) std::fill_n(factors, ld, factors[0]);
}

}  // namespace attnd::engine
