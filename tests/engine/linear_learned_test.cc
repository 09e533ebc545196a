// Learned feature maps against their definition in f64, head by head.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/linear/map_weights.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/learned_map.h"
#include "tests/engine/linear_harness.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::engine::linear_test {
namespace {

using Row = std::vector<double>;

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

class LinearLearned : public LearnedFixture {};

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

INSTANTIATE_TEST_SUITE_P(All, LinearLearned, testing::ValuesIn(kActivations), NameOf);

}  // namespace
}  // namespace attnd::engine::linear_test
