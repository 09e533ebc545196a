// The numbers of a learned map: where they are stored, what they weigh, which are refused, and
// which layers they fit.
#include "engine/linear/map_weights.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/linear/linear_engine.h"
#include "engine/linear/ref_learned.h"
#include "gtest/gtest.h"
#include "tests/engine/learned_map.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

TEST(MapWeights, DoNotDependOnHowTheirNumbersAreCut) {
  const Numbers numbers = RandomNumbers({MapActivation::kExp, 2, 4, 5, 17, true, false}, 50);
  const auto whole = Build(numbers);
  for (const std::int64_t piece : {1, 7, 85, 86, 200}) {
    MapWeightsBuilder builder(numbers.shape);
    while (!builder.complete()) {
      const std::int64_t count =
          std::min<std::int64_t>(piece, std::ssize(numbers.all) - builder.received());
      ASSERT_TRUE(builder.Add(numbers.all.data() + builder.received(), count).ok());
    }
    const auto cut = builder.Finish();
    for (std::int64_t h = 0; h < 4; ++h) {
      const std::vector<float> x = NormalNumbers(5, 51);
      EXPECT_EQ(RefLearnedQuery(*cut, h, x.data()).features,
                RefLearnedQuery(*whole, h, x.data()).features);
      EXPECT_EQ(RefLearnedKey(*cut, h % 2, x.data()).features,
                RefLearnedKey(*whole, h % 2, x.data()).features);
    }
  }
}

// Row by row, one number to a cache line, 1 MiB of a large head took up to 15 ms; tiles must put
// every number where that did, whatever the memory held before.
TEST(MapWeights, TransposingByTilesLeavesEveryNumberWhereItBelongs) {
  for (const std::int64_t d : {1, 5, 15, 16, 17, 33}) {
    for (const std::int64_t m : {1, 15, 16, 17, 40}) {
      const Numbers numbers = RandomNumbers({MapActivation::kRelu, 2, 2, d, m, false, true}, 53);
      const std::int64_t columns = (m + 15) / 16 * 16;
      for (const std::int64_t piece : {std::int64_t{1}, d, 3 * d + 1, 17 * d + 2, 10 * m * d}) {
        // What the allocator is likely to hand out next.
        std::vector<AlignedBuffer<float>> dirty;
        for (int i = 0; i < 8; ++i) {
          std::fill_n(dirty.emplace_back(d * columns).data(), d * columns, 7.0F);
        }
        dirty.clear();
        MapWeightsBuilder builder(numbers.shape);
        while (!builder.complete()) {
          const std::int64_t count =
              std::min<std::int64_t>(piece, std::ssize(numbers.all) - builder.received());
          ASSERT_TRUE(builder.Add(numbers.all.data() + builder.received(), count).ok());
        }
        const auto weights = builder.Finish();
        ASSERT_EQ(weights->columns(), columns);
        for (std::int64_t h = 0; h < 4; ++h) {
          const float* const stored =
              (h < 2 ? weights->key_head(h) : weights->query_head(h - 2)).weights.data();
          for (std::int64_t k = 0; k < d; ++k) {
            for (std::int64_t j = 0; j < columns; ++j) {
              const float expected =
                  j < m ? numbers.all[static_cast<std::size_t>((h * m + j) * d + k)] : 0.0F;
              ASSERT_EQ(stored[k * columns + j], expected)
                  << "m " << m << " d " << d << " piece " << piece << " at " << h << ' ' << k << ' '
                  << j;
            }
          }
        }
      }
    }
  }
}

TEST(MapWeights, CountTheirMemoryAsTheyGrow) {
  const MapWeightsShape shape = {MapActivation::kRelu, 2, 4, 5, 17, true, true};
  const auto weights = Build(RandomNumbers(shape, 52));
  std::int64_t held = static_cast<std::int64_t>(sizeof(MapWeights)) +
                      6 * static_cast<std::int64_t>(sizeof(MapWeights::Head));
  const std::int64_t empty = held;
  for (std::int64_t h = 0; h < 6; ++h) {
    const MapWeights::Head& head = h < 2 ? weights->key_head(h) : weights->query_head(h - 2);
    held += head.weights.bytes() + head.bias.bytes();
  }
  EXPECT_EQ(weights->bytes(), held);
  EXPECT_EQ(shape.bytes(0), empty);
  const std::int64_t one_head = weights->key_head(0).weights.bytes();
  EXPECT_EQ(shape.bytes(1), empty + one_head);
  EXPECT_EQ(shape.bytes(85), empty + one_head);
  EXPECT_EQ(shape.bytes(86), empty + 2 * one_head);
  for (std::int64_t n = 0; n < shape.numbers(); ++n) EXPECT_LE(shape.bytes(n), shape.bytes(n + 1));
}

TEST(MapWeights, RefuseNumbersThatAreNotFinite) {
  const MapWeightsShape shape = {MapActivation::kRelu, 1, 1, 2, 3, false, false};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    MapWeightsBuilder builder(shape);
    std::vector<float> numbers(12, 1.0F);
    ASSERT_TRUE(builder.Add(numbers.data(), 5).ok());
    numbers[6] = bad;
    const absl::Status status = builder.Add(numbers.data() + 5, 7);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "numbers 5 to 11 of the map hold a NaN or infinity");
  }
}

TEST(MapWeights, RefuseHostileSizes) {
  const MapWeightsShape good = {MapActivation::kRelu, 2, 4, 5, 17, true, true};
  ASSERT_TRUE(CheckMapWeightsShape(good).ok());
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{4097}, kMax}) {
    for (std::int64_t MapWeightsShape::*field :
         {&MapWeightsShape::kv_heads, &MapWeightsShape::query_heads, &MapWeightsShape::key_dim}) {
      MapWeightsShape shape = good;
      shape.*field = size;
      EXPECT_EQ(CheckMapWeightsShape(shape).code(), absl::StatusCode::kInvalidArgument) << size;
    }
  }
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{65'537}, kMax}) {
    MapWeightsShape shape = good;
    shape.features = size;
    EXPECT_EQ(CheckMapWeightsShape(shape).code(), absl::StatusCode::kInvalidArgument);
  }
  MapWeightsShape odd = good;
  odd.kv_heads = 3;
  EXPECT_EQ(CheckMapWeightsShape(odd).message(),
            "query_heads is 4; it must be a multiple of kv_heads, which is 3");
  MapWeightsShape largest = {MapActivation::kRelu, 4096, 4096, 4096, 256, true, true};
  ASSERT_TRUE(CheckMapWeightsShape(largest).ok());
  EXPECT_GT(largest.numbers(), std::int64_t{1} << 33);
  EXPECT_GT(largest.bytes(largest.numbers()), std::int64_t{1} << 35);
  // A row of it would take more than a quantum.
  largest.features = 257;
  EXPECT_EQ(CheckMapWeightsShape(largest).message(),
            "features * key_dim is 1052672; it must be at most 1048576");
}

TEST(LinearLearnedConfig, WeightsMustFitTheLayer) {
  const Numbers numbers = RandomNumbers({MapActivation::kRelu, 2, 4, 5, 16, false, false}, 60);
  const LinearConfig config = Learned(numbers);
  ASSERT_TRUE(MakeLinearEngine({2, 4, 5, 3, 1.0F}, config).ok());
  const auto message = [](const LayerShape& shape, const LinearConfig& linear) {
    const auto engine = MakeLinearEngine(shape, linear);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(engine.status().message());
  };
  EXPECT_EQ(message({1, 4, 5, 3, 1.0F}, config),
            "feature_map.weights is for kv_heads 2; the layer's is 1");
  EXPECT_EQ(message({2, 8, 5, 3, 1.0F}, config),
            "feature_map.weights is for query_heads 4; the layer's is 8");
  EXPECT_EQ(message({2, 4, 6, 3, 1.0F}, config),
            "feature_map.weights is for key_dim 5; the layer's is 6");
  LinearConfig none = config;
  none.feature_map.weights = nullptr;
  EXPECT_EQ(message({2, 4, 5, 3, 1.0F}, none),
            "feature_map.weights is not set; it must be for learned");
  LinearConfig other = config;
  other.feature_map.name = "relu";
  EXPECT_EQ(message({2, 4, 5, 3, 1.0F}, other),
            "feature_map.weights is a learned map; it must not be set for relu");
  LinearConfig seeded = config;
  seeded.feature_map.seed = 3;
  EXPECT_EQ(message({2, 4, 5, 3, 1.0F}, seeded),
            "feature_map.seed is 3; it must not be set for learned");
}

}  // namespace
}  // namespace attnd::engine::linear_test
