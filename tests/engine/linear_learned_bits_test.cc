// Learned feature maps as bits: those of the scalar reference, however many rows are mapped and
// however tokens were cut.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/linear/feature_map.h"
#include "engine/linear/ref_learned.h"
#include "engine/linear/ref_linear.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/learned_map.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

class LinearLearnedBits : public LearnedFixture {};

TEST_P(LinearLearnedBits, RowsHaveTheBitsOfTheReferenceHoweverManyAreMapped) {
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
TEST_P(LinearLearnedBits, NumberOfQueriesDoesNotMatter) {
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

TEST_P(LinearLearnedBits, AnswersHaveTheBitsOfTheReferenceHoweverTokensWereCut) {
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

INSTANTIATE_TEST_SUITE_P(All, LinearLearnedBits, testing::ValuesIn(kActivations), NameOf);

}  // namespace
}  // namespace attnd::engine::linear_test
