// The bits of the linear engine: those of the recurrence, whatever keys come later.
// linear_family_bits_test.cc has what its answers may not depend on.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/gemm.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/ref_linear.h"
#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

// A query's product with a later key may be infinite; times a weight of 0 that is a NaN.
TEST(LinearBits, LaterKeysWhoseScoreOverflowsDoNotReachEarlierQueries) {
  const LayerShape shape = {2, 8, 24, 20, 0.3F};
  const auto engine = MakeLinear(shape, Config("elu_plus_one"));
  Stream stream = MakeStream(shape, 10, 27);
  std::fill_n(stream.keys.begin() + 9 * shape.key_row(), shape.key_row(), 3e38F);
  const std::vector<float> rows = NormalNumbers(10 * shape.query_row(), 28, 10.0F);
  const Answers steps = AttendCausally(*engine, At(*engine, stream, 10), rows.data(), 10, 1);
  for (std::int64_t query = 0; query < 9; ++query) {
    EXPECT_TRUE(RowOf(steps, shape, query) == Attend(*engine, At(*engine, stream, query + 1),
                                                     rows.data() + query * shape.query_row(), 1))
        << query;
  }
  EXPECT_EQ(steps.flags.back(), static_cast<std::uint8_t>(RowFlag::kOverflow));
}

struct RefCase {
  const char* map;
  LayerShape shape;
};

// The recurrence, token by token in scalar code, has the bits of the engine.
TEST(LinearReference, EngineHasTheBitsOfTheRecurrence) {
  if (!GemmHonoursChain()) GTEST_SKIP() << "this oneDNN does not keep the chain contract";
  for (const RefCase& c :
       {RefCase{"elu_plus_one", {2, 4, 24, 20, 0.3F}}, RefCase{"identity", {1, 1, 64, 64, 1.0F}},
        RefCase{"squared_relu", {1, 2, 300, 33, 0.7F}}, RefCase{"relu", {3, 3, 1, 1, 1.0F}},
        RefCase{"favor_positive", {2, 4, 24, 20, 0.3F}},
        RefCase{"favor_hyperbolic", {1, 1, 16, 16, 1.0F}},
        RefCase{"random_fourier", {1, 2, 8, 5, 0.5F}}, RefCase{"cosformer", {2, 2, 20, 16, 1.0F}},
        RefCase{"dpfp", {1, 1, 10, 4, 1.0F}}, RefCase{"taylor", {1, 2, 24, 17, 0.2F}}}) {
    SCOPED_TRACE(c.map);
    const LayerShape& shape = c.shape;
    Stream stream = MakeStream(shape, 64 * 4 + 2, 31);
    for (const std::int64_t token : {0, 3, 66, 130, 200}) stream.Mask(token);
    LinearConfig config = Config(c.map);
    config.normalized = false;
    if (config.feature_map.name == "cosformer") config.feature_map.horizon = 50;
    if (config.feature_map.name == "dpfp") config.feature_map.nu = 2;
    const auto engine = MakeLinear(shape, config);
    const FeatureMap& map = *engine->feature_map();
    const std::vector<float> rows = NormalNumbers(shape.query_row(), 32);
    std::vector<RefLinearHead> heads(static_cast<std::size_t>(shape.kv_heads),
                                     RefLinearHead(map, shape.key_dim, shape.value_dim));
    for (std::int64_t token = 0; token < stream.tokens; ++token) {
      const auto t = static_cast<std::size_t>(token);
      for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
        heads[static_cast<std::size_t>(head)].Append(
            &stream.keys[t * static_cast<std::size_t>(shape.key_row())] + head * shape.key_dim,
            &stream.values[t * static_cast<std::size_t>(shape.value_row())] +
                head * shape.value_dim,
            stream.mask[t] == 0);
      }
      if (token % 37 != 0 && token % 64 > 1) continue;
      const Answers answers =
          Attend(*engine, At(*engine, stream, token + 1), rows.data(), 1, &token);
      for (std::int64_t h = 0; h < shape.query_heads; ++h) {
        std::vector<float> query(rows.begin() + h * shape.key_dim,
                                 rows.begin() + (h + 1) * shape.key_dim);
        for (float& q : query) q *= shape.scale;
        const RefLinearHead::Answer expected =
            heads[static_cast<std::size_t>(h / shape.group_size())].Query(query.data(), h, token);
        const auto at = static_cast<std::size_t>(h);
        EXPECT_EQ(answers.flags[at], expected.empty ? 1 : 0);
        ASSERT_EQ(answers.denominators[at], expected.denominator) << token;
        ASSERT_EQ(answers.exponents[at], expected.exponent) << token;
        for (std::int64_t j = 0; j < shape.value_dim; ++j) {
          ASSERT_EQ(answers.numerators[static_cast<std::size_t>(h * shape.value_dim + j)],
                    expected.numerator[static_cast<std::size_t>(j)])
              << token;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnd::engine::linear_test
