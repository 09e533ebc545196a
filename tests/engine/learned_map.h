// Learned feature maps with random numbers, and their projections in f64.
#ifndef ATTND_TESTS_ENGINE_LEARNED_MAP_H_
#define ATTND_TESTS_ENGINE_LEARNED_MAP_H_

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_config.h"
#include "engine/linear/map_weights.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {

// The numbers of a map, in the order in which a builder takes them.
struct Numbers {
  MapWeightsShape shape;
  std::vector<float> all;

  // y = W x + b of key head h (queries: of query head h), in f64.
  std::vector<double> Project(bool query, std::int64_t h, const std::vector<double>& x) const {
    const std::int64_t m = shape.features;
    const std::int64_t d = shape.key_dim;
    const std::int64_t keys = shape.kv_heads * m * (d + (shape.key_bias ? 1 : 0));
    const std::int64_t heads = query ? shape.query_heads : shape.kv_heads;
    const float* weights = all.data() + (query ? keys : 0);
    const float* biases =
        (query ? shape.query_bias : shape.key_bias) ? weights + heads * m * d : nullptr;
    std::vector<double> y;
    for (std::int64_t j = 0; j < m; ++j) {
      double sum = biases == nullptr ? 0.0 : static_cast<double>(biases[h * m + j]);
      for (std::int64_t k = 0; k < d; ++k) {
        sum += static_cast<double>(weights[(h * m + j) * d + k]) * x[Size(k)];
      }
      y.push_back(sum);
    }
    return y;
  }
};

inline Numbers RandomNumbers(const MapWeightsShape& shape, std::uint32_t seed, float scale = 0.4F) {
  return {shape, NormalNumbers(shape.numbers(), seed, scale)};
}

inline std::shared_ptr<const MapWeights> Build(const Numbers& numbers) {
  EXPECT_TRUE(CheckMapWeightsShape(numbers.shape).ok());
  MapWeightsBuilder builder(numbers.shape);
  EXPECT_TRUE(builder.Add(numbers.all.data(), std::ssize(numbers.all)).ok());
  EXPECT_TRUE(builder.complete());
  return builder.Finish();
}

inline LinearConfig Learned(const Numbers& numbers) {
  LinearConfig config;
  config.feature_map.name = "learned";
  config.feature_map.weights = Build(numbers);
  config.guard_epsilon = 1e-30F;
  return config;
}

inline constexpr MapActivation kActivations[] = {MapActivation::kRelu, MapActivation::kExp,
                                                 MapActivation::kSoftmax, MapActivation::kHedgehog};

// By the activation of the map.
class LearnedFixture : public testing::TestWithParam<MapActivation> {
 protected:
  MapWeightsShape MapShape(bool key_bias = true, bool query_bias = true) const {
    return {GetParam(), shape_.kv_heads, shape_.query_heads, shape_.key_dim,
            21,         key_bias,        query_bias};
  }

  LayerShape shape_ = {2, 6, 12, 9, 0.3F};
};

inline std::string NameOf(const testing::TestParamInfo<MapActivation>& info) {
  constexpr const char* kNames[] = {"Relu", "Exp", "Softmax", "Hedgehog"};
  return kNames[static_cast<int>(info.param)];
}

}  // namespace attnd::engine::linear_test

#endif  // ATTND_TESTS_ENGINE_LEARNED_MAP_H_
