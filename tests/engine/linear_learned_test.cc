// Learned feature maps against their definition in f64, head by head, and as bits against the
// scalar reference.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/gemm.h"
#include "engine/linear/linear_engine.h"
#include "engine/linear/map_weights.h"
#include "engine/linear/ref_learned.h"
#include "engine/linear/ref_linear.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

using Row = std::vector<double>;

constexpr MapActivation kActivations[] = {MapActivation::kRelu, MapActivation::kExp,
                                          MapActivation::kSoftmax, MapActivation::kHedgehog};

// The numbers of a map, in the order in which a builder takes them.
struct Numbers {
  MapWeightsShape shape;
  std::vector<float> all;

  // y = W x + b of key head h (queries: of query head h), in f64.
  Row Project(bool query, std::int64_t h, const Row& x) const {
    const std::int64_t m = shape.features;
    const std::int64_t d = shape.key_dim;
    const std::int64_t keys = shape.kv_heads * m * (d + (shape.key_bias ? 1 : 0));
    const std::int64_t heads = query ? shape.query_heads : shape.kv_heads;
    const float* weights = all.data() + (query ? keys : 0);
    const float* biases =
        (query ? shape.query_bias : shape.key_bias) ? weights + heads * m * d : nullptr;
    Row y;
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

Numbers RandomNumbers(const MapWeightsShape& shape, std::uint32_t seed, float scale = 0.4F) {
  return {shape, NormalNumbers(shape.numbers(), seed, scale)};
}

std::shared_ptr<const MapWeights> Build(const Numbers& numbers) {
  EXPECT_TRUE(CheckMapWeightsShape(numbers.shape).ok());
  MapWeightsBuilder builder(numbers.shape);
  EXPECT_TRUE(builder.Add(numbers.all.data(), std::ssize(numbers.all)).ok());
  EXPECT_TRUE(builder.complete());
  return builder.Finish();
}

LinearConfig Learned(const Numbers& numbers) {
  LinearConfig config;
  config.feature_map.name = "learned";
  config.feature_map.weights = Build(numbers);
  config.guard_epsilon = 1e-30F;
  return config;
}

Row SoftmaxOf(const Row& y) {
  const double largest = *std::max_element(y.begin(), y.end());
  Row e;
  double sum = 0;
  for (const double v : y) sum += e.emplace_back(std::exp(v - largest));
  for (double& v : e) v /= sum;
  return e;
}

double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double Kernel(MapActivation activation, Row q, Row k) {
  switch (activation) {
    case MapActivation::kRelu:
      for (double& v : q) v = std::max(v, 0.0);
      for (double& v : k) v = std::max(v, 0.0);
      return Dot(q, k);
    case MapActivation::kExp: {
      double sum = 0;
      for (std::size_t j = 0; j < q.size(); ++j) sum += std::exp(q[j] + k[j]);
      return sum;
    }
    case MapActivation::kSoftmax:
      return Dot(SoftmaxOf(q), SoftmaxOf(k));
    case MapActivation::kHedgehog: {
      const double positive = Dot(SoftmaxOf(q), SoftmaxOf(k));
      for (double& v : q) v = -v;
      for (double& v : k) v = -v;
      return positive + Dot(SoftmaxOf(q), SoftmaxOf(k));
    }
  }
  return 0;
}

// The oracle knows no heads that differ: it is asked for each query head alone.
oracle::Answers Truth(const Numbers& numbers, const Stream& stream, std::int64_t position,
                      const std::vector<float>& queries, std::int64_t count, std::int64_t head,
                      bool normalized) {
  const LayerShape& shape = stream.shape;
  const std::int64_t kv = head / shape.group_size();
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<float> rows;
  for (std::int64_t t = 0; t < position; ++t) {
    const float* key = stream.keys.data() + t * shape.key_row() + kv * shape.key_dim;
    const float* value = stream.values.data() + t * shape.value_row() + kv * shape.value_dim;
    keys.insert(keys.end(), key, key + shape.key_dim);
    values.insert(values.end(), value, value + shape.value_dim);
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = queries.data() + i * shape.query_row() + head * shape.key_dim;
    rows.insert(rows.end(), row, row + shape.key_dim);
  }
  const oracle::Context context = {
      1,        1,           shape.key_dim, shape.value_dim,   static_cast<double>(shape.scale),
      position, keys.data(), values.data(), stream.mask.data()};
  const oracle::Similarity similarity = [&](const Row& q, const Row& k, std::int64_t,
                                            std::int64_t) {
    return Kernel(numbers.shape.activation, numbers.Project(true, head, q),
                  numbers.Project(false, kv, k));
  };
  return oracle::BySimilarity(
      context,
      {rows.data(), oracle::AllVisible(count, position), std::vector<std::int64_t>(Size(count))},
      similarity, normalized);
}

// Of one query head.
std::vector<float> HeadRows(const std::vector<float>& all, std::int64_t heads, std::int64_t head,
                            std::int64_t width) {
  std::vector<float> rows;
  for (std::int64_t i = head * width; i < std::ssize(all); i += heads * width) {
    rows.insert(rows.end(), all.begin() + i, all.begin() + i + width);
  }
  return rows;
}

class LinearLearned : public testing::TestWithParam<MapActivation> {
 protected:
  MapWeightsShape MapShape(bool key_bias = true, bool query_bias = true) const {
    return {GetParam(), shape_.kv_heads, shape_.query_heads, shape_.key_dim,
            21,         key_bias,        query_bias};
  }

  LayerShape shape_ = {2, 6, 12, 9, 0.3F};
};

TEST_P(LinearLearned, AgreesWithItsDefinitionForEveryHead) {
  constexpr std::int64_t kQueries = 5;
  Stream stream = MakeStream(shape_, 150, 1);
  for (std::int64_t token = 60; token < 140; token += 3) stream.Mask(token);
  const std::vector<float> rows = NormalNumbers(kQueries * shape_.query_row(), 3);
  for (const auto& [key_bias, query_bias] :
       {std::pair{false, false}, {true, true}, {true, false}, {false, true}}) {
    const Numbers numbers = RandomNumbers(MapShape(key_bias, query_bias), 4);
    for (const bool normalized : {true, false}) {
      LinearConfig config = Learned(numbers);
      config.normalized = normalized;
      const auto engine = MakeLinear(shape_, config);
      for (const std::int64_t position : {1, 64, 65, 150}) {
        SCOPED_TRACE(position);
        const Answers answers =
            Attend(*engine, At(*engine, stream, position), rows.data(), kQueries);
        std::vector<float> denominators;
        for (std::size_t i = 0; i < answers.denominators.size(); ++i) {
          denominators.push_back(std::ldexp(answers.denominators[i], answers.exponents[i]));
        }
        for (std::int64_t head = 0; head < shape_.query_heads; ++head) {
          const oracle::Answers truth =
              Truth(numbers, stream, position, rows, kQueries, head, normalized);
          EXPECT_LT(RelativeError(HeadRows(denominators, shape_.query_heads, head, 1),
                                  truth.denominators),
                    3e-6);
          EXPECT_LT(
              RelativeError(HeadRows(answers.outputs, shape_.query_heads, head, shape_.value_dim),
                            truth.outputs),
              3e-6);
        }
      }
    }
  }
}

TEST_P(LinearLearned, RowsHaveTheBitsOfTheReferenceHoweverManyAreMapped) {
  for (const std::int64_t d : {12, 300}) {
    MapWeightsShape shape = MapShape();
    shape.key_dim = d;
    shape.features = 37;
    const Numbers numbers = RandomNumbers(shape, 5, 0.2F);
    const auto weights = Build(numbers);
    FeatureMapConfig config;
    config.name = "learned";
    config.weights = weights;
    const auto map =
        MakeFeatureMap(config, {shape.kv_heads, shape.query_heads, d, 1, 1.0F}).value();
    const std::int64_t c = map->feature_dim();
    const std::vector<float> rows = NormalNumbers(192 * (d + 3), 6);
    Scratch scratch;
    for (const std::int64_t count : {1, 3, 4, 5, 9, 16, 17, 24, 48, 64, 65, 192}) {
      // Dense ones may be read where they are.
      const std::int64_t stride = count % 2 == 0 ? d : d + 3;
      std::vector<float> features(Size(count * (c + 5)), -7.0F);
      std::vector<std::int32_t> exponents(Size(count));
      const MapFeatures out = {features.data(), c + 5, exponents.data()};
      for (const bool query : {false, true}) {
        const std::int64_t head = query ? 4 : 1;
        const MapRows in = {rows.data(), stride, count, head, nullptr};
        query ? map->MapQueries(in, out, scratch) : map->MapKeys(in, out, scratch);
        for (std::int64_t i = 0; i < count; i += std::max<std::int64_t>(1, count / 7)) {
          const RefFeatures ref = query ? RefLearnedQuery(*weights, head, rows.data() + i * stride)
                                        : RefLearnedKey(*weights, head, rows.data() + i * stride);
          const auto first = features.begin() + i * (c + 5);
          ASSERT_TRUE(SameBits(std::vector<float>(first, first + c), ref.features))
              << count << " rows, row " << i;
          ASSERT_EQ(first[c], -7.0F);
          ASSERT_EQ(map->scaled() ? exponents[Size(i)] : 0, ref.exponent);
        }
      }
    }
  }
}

// Rows of one query head are mapped together: neither their number nor what else is asked shows.
TEST_P(LinearLearned, NumberOfQueriesDoesNotMatter) {
  const auto engine = MakeLinear(shape_, Learned(RandomNumbers(MapShape(), 7)));
  const Stream stream = MakeStream(shape_, 200, 8);
  const Snapshot snapshot = At(*engine, stream, 200);
  constexpr std::int64_t kMost = 150;
  const std::vector<float> rows = NormalNumbers(kMost * shape_.query_row(), 9);
  const Answers all = Attend(*engine, snapshot, rows.data(), kMost);
  for (const std::int64_t count : {1, 2, 3, 5, 21, 22, 64, 65}) {
    const std::int64_t first = kMost - count;
    const Answers some = Attend(*engine, snapshot, rows.data() + first * shape_.query_row(), count);
    const auto tail = [](const auto& numbers, std::size_t size) {
      return std::decay_t<decltype(numbers)>(numbers.end() - static_cast<std::ptrdiff_t>(size),
                                             numbers.end());
    };
    EXPECT_TRUE(SameBits(some.outputs, tail(all.outputs, some.outputs.size()))) << count;
    EXPECT_TRUE(SameBits(some.denominators, tail(all.denominators, some.denominators.size())));
    EXPECT_EQ(some.exponents, tail(all.exponents, some.exponents.size()));
    EXPECT_EQ(some.flags, tail(all.flags, some.flags.size()));
  }
}

TEST_P(LinearLearned, AnswersHaveTheBitsOfTheReferenceHoweverTokensWereCut) {
  const Numbers numbers = RandomNumbers(MapShape(), 10);
  const auto engine = MakeLinear(shape_, Learned(numbers));
  const FeatureMap& map = *engine->feature_map();
  Stream stream = MakeStream(shape_, 200, 11);
  for (const std::int64_t token : {5, 64, 70, 130, 199}) stream.Mask(token);
  const std::vector<float> rows = NormalNumbers(3 * shape_.query_row(), 12);
  for (const std::int64_t position : {1, 64, 129, 200}) {
    const Answers expected = Attend(*engine, At(*engine, stream, position), rows.data(), 3);
    for (const Cutting& cutting : {Cutting{{1}, true, true}, Cutting{{2, 1}, false, false}}) {
      EXPECT_TRUE(Attend(*engine, At(*engine, stream, position, cutting), rows.data(), 3) ==
                  expected);
    }
    for (std::int64_t head = 0; head < shape_.query_heads; ++head) {
      const std::int64_t kv = head / shape_.group_size();
      RefLinearHead ref(map, shape_.key_dim, shape_.value_dim, kv);
      for (std::int64_t t = 0; t < position; ++t) {
        ref.Append(stream.keys.data() + t * shape_.key_row() + kv * shape_.key_dim,
                   stream.values.data() + t * shape_.value_row() + kv * shape_.value_dim,
                   stream.mask[Size(t)] == 0);
      }
      for (std::int64_t i = 0; i < 3; ++i) {
        std::vector<float> query(Size(shape_.key_dim));
        for (std::int64_t k = 0; k < shape_.key_dim; ++k) {
          query[Size(k)] =
              shape_.scale * rows[Size(i * shape_.query_row() + head * shape_.key_dim + k)];
        }
        const RefLinearHead::Answer answer = ref.Query(query.data(), head);
        const std::size_t row = Size(i * shape_.query_heads + head);
        ASSERT_EQ(expected.denominators[row], answer.denominator) << position << " " << head;
        ASSERT_EQ(expected.exponents[row], map.scaled() ? answer.exponent : 0);
      }
    }
  }
}

// An infinite y makes a NaN of every feature of its row, and never a silent one-hot.
TEST_P(LinearLearned, RowsThatOverflowAreErrors) {
  const auto engine = MakeLinear(shape_, Learned(RandomNumbers(MapShape(), 13, 10.0F)));
  Stream stream = MakeStream(shape_, 3, 14);
  std::vector<float> query = NormalNumbers(shape_.query_row(), 15);
  std::fill(query.begin(), query.end(), 3e38F);
  const Answers answers = Attend(*engine, At(*engine, stream, 3), query.data(), 1);
  EXPECT_EQ(answers.flags,
            std::vector<std::uint8_t>(Size(shape_.query_heads),
                                      static_cast<std::uint8_t>(RowFlag::kOverflow)));
  std::fill(stream.keys.begin() + 5, stream.keys.begin() + 9, 3e38F);
  const Snapshot snapshot = At(*engine, stream, 3);
  Scratch scratch;
  EXPECT_EQ(engine->CheckTail(*snapshot.sealed, snapshot.view(), scratch).code(),
            absl::StatusCode::kOutOfRange);
}

std::string NameOf(const testing::TestParamInfo<MapActivation>& info) {
  constexpr const char* kNames[] = {"Relu", "Exp", "Softmax", "Hedgehog"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(All, LinearLearned, testing::ValuesIn(kActivations), NameOf);

// exp(y) of y beyond 88.7 leaves f32; a maximum subtracted per key would change the kernel.
TEST(LinearLearnedExp, NeitherOverflowsNorForgetsTheScaleOfAKey) {
  const LayerShape shape = {1, 1, 4, 3, 1.0F};
  // What the features of a row have in common leaves f32, what tells them apart does not.
  Numbers numbers = RandomNumbers({MapActivation::kExp, 1, 1, 4, 8, false, false}, 20, 0.03F);
  for (std::size_t i = 0; i < numbers.all.size(); ++i) {
    numbers.all[i] += static_cast<float>(i % 4) - 1.5F;
  }
  const auto engine = MakeLinear(shape, Learned(numbers));
  for (const float length : {1.0F, 40.0F, 400.0F}) {
    Stream stream = MakeStream(shape, 130, 21);
    for (std::int64_t t = 0; t < 130; ++t) {
      // A key in front that outweighs or underweighs all others.
      const float factor = t % 50 == 10 ? length : 0.1F * length;
      for (std::int64_t k = 0; k < 4; ++k) stream.keys[Size(4 * t + k)] *= factor;
    }
    std::vector<float> rows = NormalNumbers(3 * shape.query_row(), 22, length);
    const Answers answers = Attend(*engine, At(*engine, stream, 130), rows.data(), 3);
    EXPECT_EQ(answers.flags, (std::vector<std::uint8_t>{0, 0, 0})) << length;
    // In the log domain: the weights of the definition relative to the largest.
    for (std::int64_t i = 0; i < 3; ++i) {
      const Row q = numbers.Project(true, 0, Row(rows.begin() + 4 * i, rows.begin() + 4 * i + 4));
      double largest = -std::numeric_limits<double>::infinity();
      std::vector<Row> keys;
      for (std::int64_t t = 0; t < 130; ++t) {
        keys.push_back(numbers.Project(
            false, 0, Row(stream.keys.begin() + 4 * t, stream.keys.begin() + 4 * t + 4)));
        for (std::size_t j = 0; j < 8; ++j) largest = std::max(largest, q[j] + keys.back()[j]);
      }
      double sum = 0;
      Row outputs(3, 0.0);
      for (std::int64_t t = 0; t < 130; ++t) {
        double weight = 0;
        for (std::size_t j = 0; j < 8; ++j) {
          weight += std::exp(q[j] + keys[Size(t)][j] - largest);
        }
        sum += weight;
        for (std::size_t v = 0; v < 3; ++v) {
          outputs[v] += weight * static_cast<double>(stream.values[Size(3 * t) + v]);
        }
      }
      for (double& v : outputs) v /= sum;
      const auto first = answers.outputs.begin() + 3 * i;
      // y is a sum of 4 products of numbers as large as length: its rounding is what exp amplifies.
      EXPECT_LT(RelativeError(std::vector<float>(first, first + 3), outputs),
                1e-6 + 2e-6 * static_cast<double>(length))
          << length;
    }
  }
}

// fla builds one softmax over [2y, -2y]; the authors two. A row of both halves sums to 2.
TEST(LinearLearnedHedgehog, IsTwoSoftmaxes) {
  const Numbers numbers = RandomNumbers({MapActivation::kHedgehog, 1, 1, 6, 10, true, true}, 30);
  const auto weights = Build(numbers);
  const std::vector<float> x = NormalNumbers(6, 31);
  const RefFeatures row = RefLearnedKey(*weights, 0, x.data());
  ASSERT_EQ(row.features.size(), 20U);
  double first = 0;
  double second = 0;
  for (std::size_t j = 0; j < 10; ++j) {
    first += static_cast<double>(row.features[j]);
    second += static_cast<double>(row.features[10 + j]);
  }
  EXPECT_NEAR(first, 1, 1e-6);
  EXPECT_NEAR(second, 1, 1e-6);
}

// A saturated softmax is one-hot: kernels that underflow are zeros, and the flag says so.
TEST(LinearLearnedSoftmax, SaturatedRowsStayFinite) {
  const LayerShape shape = {1, 1, 2, 1, 1.0F};
  // y = x for keys; y = (x_1, x_0) for queries.
  const Numbers numbers = {{MapActivation::kSoftmax, 1, 1, 2, 2, false, false},
                           {1, 0, 0, 1, 0, 1, 1, 0}};
  LinearConfig config = Learned(numbers);
  config.guard_epsilon = 1e-6F;
  const auto engine = MakeLinear(shape, config);
  Stream stream = MakeStream(shape, 2, 40);
  stream.keys = {1e30F, -1e30F, 1e30F, -1e30F};
  const std::vector<float> queries = {1e30F, -1e30F, -1e30F, 1e30F};
  const Answers answers = Attend(*engine, At(*engine, stream, 2), queries.data(), 2);
  EXPECT_EQ(answers.denominators, (std::vector<float>{0.0F, 2.0F}));
  EXPECT_EQ(answers.flags[0], static_cast<std::uint8_t>(RowFlag::kNonPositive));
  EXPECT_EQ(answers.outputs[0], 0.0F);
  EXPECT_EQ(answers.flags[1], 0);
}

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
