#include "engine/linear/ref_learned.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/gemm.h"
#include "engine/linear/log_features.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

std::vector<float> Projected(const MapWeights& weights, const MapWeights::Head& head,
                             const float* x) {
  const std::int64_t d = weights.shape().key_dim;
  std::vector<float> y;
  for (std::int64_t j = 0; j < weights.shape().features; ++j) {
    float sum = 0.0F;
    for (std::int64_t panel = 0; panel < d; panel += kGemmInnerPanel) {
      float chain = 0.0F;
      for (std::int64_t k = panel; k < std::min(d, panel + kGemmInnerPanel); ++k) {
        chain = std::fma(x[k], head.weights.data()[k * weights.columns() + j], chain);
      }
      sum = panel == 0 ? chain : sum + chain;
    }
    if (head.bias.size() > 0) sum += head.bias.data()[j];
    y.push_back(sum);
  }
  return y;
}

std::vector<float> Softmax(const std::vector<float>& y) {
  const float largest = *std::max_element(y.begin(), y.end());
  std::vector<float> features;
  float lanes[16] = {};
  for (const float number : y) {
    float weight = 0;
    ExpShifted(&number, largest, 0.0F, &weight, 1);
    lanes[features.size() % 16] += weight;
    features.push_back(weight);
  }
  const auto pair = [&lanes](int l) { return lanes[l] + lanes[l + 8]; };
  const float sum =
      ((pair(0) + pair(4)) + (pair(2) + pair(6))) + ((pair(1) + pair(5)) + (pair(3) + pair(7)));
  for (float& feature : features) feature *= 1.0F / sum;
  return features;
}

RefFeatures Apply(const MapWeights& weights, const MapWeights::Head& head, const float* x) {
  std::vector<float> y = Projected(weights, head, x);
  RefFeatures result;
  switch (weights.shape().activation) {
    case MapActivation::kRelu:
      for (float& number : y) number = std::max(number, 0.0F);
      result.features = y;
      break;
    case MapActivation::kExp: {
      const float largest = *std::max_element(y.begin(), y.end());
      const RowFactor factor = SplitFactor(static_cast<double>(largest));
      for (float& number : y) ExpShifted(&number, largest, factor.log_factor, &number, 1);
      result = {y, factor.exponent};
      break;
    }
    case MapActivation::kSoftmax:
      result.features = Softmax(y);
      break;
    case MapActivation::kHedgehog: {
      result.features = Softmax(y);
      for (float& number : y) number = -number;
      const std::vector<float> second = Softmax(y);
      result.features.insert(result.features.end(), second.begin(), second.end());
      break;
    }
  }
  return result;
}

}  // namespace

RefFeatures RefLearnedKey(const MapWeights& weights, std::int64_t head, const float* x) {
  return Apply(weights, weights.key_head(head), x);
}

RefFeatures RefLearnedQuery(const MapWeights& weights, std::int64_t head, const float* x) {
  return Apply(weights, weights.query_head(head), x);
}

}  // namespace attnd::engine
