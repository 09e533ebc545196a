// Sessions that answer with a learned feature map, against its definition in f64.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/feature_map_calls.h"
#include "tests/e2e/harness.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/server/feature_map_fixture.h"

namespace attnd::e2e {
namespace {

using Row = std::vector<double>;

// y = W x + b of a kv-head, or of a query head.
Row Project(const TestMap& map, bool query, std::int64_t head, const Row& x) {
  const std::int64_t m = map.header.features();
  const std::int64_t d = map.header.key_dim();
  const std::int64_t heads = query ? map.header.query_heads() : map.header.kv_heads();
  const float* weights =
      map.numbers.data() + (query ? map.header.kv_heads() * m * (d + 1) : std::int64_t{0});
  const float* biases = weights + heads * m * d;
  Row y;
  for (std::int64_t j = 0; j < m; ++j) {
    double sum = static_cast<double>(biases[head * m + j]);
    for (std::int64_t k = 0; k < d; ++k) {
      sum += static_cast<double>(weights[(head * m + j) * d + k]) * x[static_cast<std::size_t>(k)];
    }
    y.push_back(sum);
  }
  return y;
}

Row ExpOf(const Row& y, double sign, bool normalized) {
  Row e;
  double sum = 0;
  for (const double v : y) sum += e.emplace_back(std::exp(sign * v));
  for (double& v : e) v /= normalized ? sum : 1;
  return e;
}

double Dot(const Row& a, const Row& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double Kernel(v1::FeatureMapHeader::Activation activation, Row q, Row k) {
  switch (activation) {
    case v1::FeatureMapHeader::EXP:
      return Dot(ExpOf(q, 1, false), ExpOf(k, 1, false));
    case v1::FeatureMapHeader::SOFTMAX:
      return Dot(ExpOf(q, 1, true), ExpOf(k, 1, true));
    case v1::FeatureMapHeader::HEDGEHOG:
      return Dot(ExpOf(q, 1, true), ExpOf(k, 1, true)) +
             Dot(ExpOf(q, -1, true), ExpOf(k, -1, true));
    default:
      for (double& v : q) v = std::max(v, 0.0);
      for (double& v : k) v = std::max(v, 0.0);
      return Dot(q, k);
  }
}

// Rows of one head out of [n, heads, width].
std::vector<float> HeadRows(const std::vector<float>& all, std::int64_t heads, std::int64_t head,
                            std::int64_t width) {
  std::vector<float> rows;
  for (std::int64_t i = head * width; i < std::ssize(all); i += heads * width) {
    rows.insert(rows.end(), all.begin() + i, all.begin() + i + width);
  }
  return rows;
}

oracle::Answers Truth(const TestMap& map, const Tokens& tokens, const std::vector<float>& queries,
                      std::int64_t count, std::int64_t head) {
  const std::int64_t kv = head / (kMapShape.query_heads / kMapShape.kv_heads);
  const std::vector<float> keys = HeadRows(tokens.keys, kMapShape.kv_heads, kv, kMapShape.key_dim);
  const std::vector<float> values =
      HeadRows(tokens.values, kMapShape.kv_heads, kv, kMapShape.value_dim);
  const std::vector<float> rows = HeadRows(queries, kMapShape.query_heads, head, kMapShape.key_dim);
  oracle::Context context;
  context.key_dim = kMapShape.key_dim;
  context.value_dim = kMapShape.value_dim;
  context.tokens = tokens.count;
  context.keys = keys.data();
  context.values = values.data();
  return oracle::BySimilarity(
      context,
      {rows.data(), oracle::AllVisible(count, tokens.count),
       std::vector<std::int64_t>(static_cast<std::size_t>(count))},
      [&](const Row& q, const Row& k, std::int64_t, std::int64_t) {
        return Kernel(map.header.activation(), Project(map, true, head, q),
                      Project(map, false, kv, k));
      },
      /*normalized=*/true);
}

TEST(PutFeatureMap, SessionsAnswerByTheDefinitionOfTheirMap) {
  TestServer server;
  for (const auto activation : {v1::FeatureMapHeader::RELU, v1::FeatureMapHeader::EXP,
                                v1::FeatureMapHeader::SOFTMAX, v1::FeatureMapHeader::HEDGEHOG}) {
    const TestMap map = MapOf(activation, 3);
    ASSERT_TRUE(Succeeded(Put(server.stub(), map, 777).status));
    const TestSession session(server.stub(), v1::FeatureMapHeader::Activation_Name(activation),
                              ConfigOf({LearnedGroup(map)}));
    const Tokens tokens = RandomTokens(kMapShape, 150, 4);
    ASSERT_TRUE(Succeeded(session.Append(tokens, 0, 100).status));
    ASSERT_TRUE(Succeeded(session.Append(tokens, 100, 50).status));
    const std::vector<float> queries = RandomQueries(kMapShape, 20, 5);
    v1::AnswerOptions wanted;
    wanted.set_flags(true);
    wanted.set_denominators(true);
    const auto reply = session.Attend(session.AttendOf(kMapShape, queries, 0, 20, wanted));
    ASSERT_TRUE(Succeeded(reply.status));
    const std::vector<float> outputs = Floats(reply->answer().outputs());
    std::vector<float> denominators = Floats(reply->answer().denominators());
    EXPECT_EQ(reply->answer().flags(), std::string(80, '\0'));
    const bool scaled = activation == v1::FeatureMapHeader::EXP;
    ASSERT_EQ(reply->answer().denominator_exponents_size(), scaled ? 80 : 0);
    for (int i = 0; scaled && i < 80; ++i) {
      float& denominator = denominators[static_cast<std::size_t>(i)];
      denominator = std::ldexp(denominator, reply->answer().denominator_exponents(i));
    }
    for (std::int64_t head = 0; head < kMapShape.query_heads; ++head) {
      const oracle::Answers truth = Truth(map, tokens, queries, 20, head);
      EXPECT_LT(RelativeError(HeadRows(outputs, kMapShape.query_heads, head, kMapShape.value_dim),
                              truth.outputs),
                3e-6)
          << session.id() << " head " << head;
      EXPECT_LT(
          RelativeError(HeadRows(denominators, kMapShape.query_heads, head, 1), truth.denominators),
          3e-6);
    }
    const auto described = session.Get();
    EXPECT_EQ(described->engine_facts(0).feature_dim(),
              activation == v1::FeatureMapHeader::HEDGEHOG ? 20 : 10);
    EXPECT_EQ(described->config().layer_groups(0).linear().feature_map().weights(),
              map.header.sha256());
  }
}

TEST(PutFeatureMap, AttendAndStepAgreeBitForBit) {
  TestServer server;
  const TestMap map = MapOf(v1::FeatureMapHeader::EXP, 6);
  ASSERT_TRUE(Succeeded(Put(server.stub(), map).status));
  const Tokens tokens = RandomTokens(kMapShape, 130, 7);
  const std::vector<float> queries = RandomQueries(kMapShape, 130, 8);
  const TestSession stepped(server.stub(), "stepped", ConfigOf({LearnedGroup(map)}));
  const TestSession appended(server.stub(), "appended", ConfigOf({LearnedGroup(map)}));
  const auto steps = stepped.Step(stepped.StepOf(tokens, queries, 0, 130));
  ASSERT_TRUE(Succeeded(steps.status));
  const std::size_t row = static_cast<std::size_t>(kMapShape.query_heads * kMapShape.value_dim) * 4;
  for (std::int64_t i = 0; i < 130; ++i) {
    ASSERT_TRUE(Succeeded(appended.Append(tokens, i, 1).status));
    const auto answer = appended.Attend(appended.AttendOf(kMapShape, queries, i, 1));
    ASSERT_TRUE(Succeeded(answer.status));
    ASSERT_EQ(answer->answer().outputs().data(),
              steps->answer().outputs().data().substr(static_cast<std::size_t>(i) * row, row))
        << i;
  }
}

}  // namespace
}  // namespace attnd::e2e
