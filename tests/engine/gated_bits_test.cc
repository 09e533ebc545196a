// Same tokens, same bits: what an answer of the gated engine may not depend on.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "engine/gated/gated_engine.h"
#include "engine/gated/ref_gated.h"
#include "engine/gemm.h"
#include "gtest/gtest.h"
#include "tests/engine/gated_harness.h"

namespace attnd::engine::gated_test {
namespace {

using linear_test::NormalNumbers;

class GatedBits : public testing::TestWithParam<Case> {
 protected:
  static constexpr std::int64_t kTokens = 64 * 5 + 40;

  GatedBits() {
    for (const std::int64_t token : {3, 64, 70, 127, 200, 330}) stream_.Mask(token);
  }

  const LayerShape& shape() const { return GetParam().shape; }
  const float* query(std::int64_t i) const { return queries_.data() + i * shape().query_row(); }

  const std::unique_ptr<const Engine> engine_ = Make(GetParam());
  Stream stream_ = Stream(GetParam(), kTokens, 21);
  const std::vector<float> queries_ = NormalNumbers(kTokens * GetParam().shape.query_row(), 22);
};

TEST_P(GatedBits, CuttingDoesNotMatter) {
  const Answers expected = Attend(*engine_, *At(*engine_, stream_, kTokens), query(0), 3);
  for (const std::vector<std::int64_t>& pieces :
       {std::vector<std::int64_t>{1}, {7}, {63, 1}, {64}, {65, 2}, {150, 3, 1}, {128}}) {
    const auto state = At(*engine_, stream_, kTokens, pieces);
    EXPECT_TRUE(Attend(*engine_, *state, query(0), 3) == expected) << pieces[0];
  }
}

TEST_P(GatedBits, StepsAgreeWithAttendsAtEveryPosition) {
  const auto before = At(*engine_, stream_, 194);
  const auto after = Append(*engine_, stream_, before, 64 * 4);
  const Answers steps = Step(*engine_, *after, query(0), 62);
  for (std::int64_t i = 0; i < 62; ++i) {
    const auto state = At(*engine_, stream_, 64 * 3 + 3 + i);
    ASSERT_TRUE(RowOf(steps, shape(), i) == Attend(*engine_, *state, query(i), 1)) << i;
  }
}

TEST_P(GatedBits, NumberOfQueriesDoesNotMatter) {
  const auto state = At(*engine_, stream_, kTokens);
  const Answers all = Attend(*engine_, *state, query(0), kTokens);
  for (const std::int64_t count : {1, 2, 5, 16, 17, 63, 64, 65, 200}) {
    const std::int64_t first = kTokens - count;
    const Answers some = Attend(*engine_, *state, query(first), count);
    for (std::int64_t i = 0; i < count; i += std::max<std::int64_t>(1, count / 7)) {
      ASSERT_TRUE(RowOf(some, shape(), i) == RowOf(all, shape(), first + i)) << count;
    }
  }
}

// fla#1272: the gates of padding are applied.
TEST_P(GatedBits, GatesKeysAndValuesOfMaskedTokensDoNotMatter) {
  const Answers expected = Attend(*engine_, *At(*engine_, stream_, kTokens), query(0), 2);
  Stream other = stream_;
  for (const std::int64_t token : {3, 64, 70, 127, 200, 330}) {
    const auto overwrite = [&](std::vector<float>& numbers, float value) {
      const std::int64_t row = std::ssize(numbers) / other.tokens;
      std::fill_n(numbers.begin() + token * row, row, value);
    };
    overwrite(other.keys, 100.0F);
    overwrite(other.values, -100.0F);
    overwrite(other.log_decays, -9.0F);
    overwrite(other.rates, 1.5F);
  }
  EXPECT_TRUE(Attend(*engine_, *At(*engine_, other, kTokens), query(0), 2) == expected);
}

TEST_P(GatedBits, RowsAfterThePositionAreNeverRead) {
  const auto state = At(*engine_, stream_, 64 * 2 + 20);
  const Answers expected = Attend(*engine_, *state, query(0), 2);
  const auto poison = [](auto& buffer, std::int64_t rows, std::int64_t from) {
    const std::int64_t row = buffer.size() / rows;
    std::fill(buffer.data() + from * row, buffer.data() + buffer.size(),
              std::numeric_limits<float>::quiet_NaN());
  };
  Tail& tail = *state->tail;
  poison(tail.keys, kBlockTokens, 20);
  poison(tail.values, kBlockTokens, 20);
  poison(tail.log_decays, kBlockTokens, 20);
  poison(tail.rates, kBlockTokens, 20);
  const TailLayout layout = engine_->tail_layout();
  for (std::int64_t head = 0; head < shape().kv_heads; ++head) {
    for (std::int64_t row = 20; row < kBlockTokens; ++row) {
      const std::int64_t at = head * kBlockTokens + row;
      std::fill_n(tail.features.data() + at * layout.features, layout.features,
                  std::numeric_limits<float>::quiet_NaN());
      std::fill_n(tail.updates.data() + at * layout.updates, layout.updates,
                  std::numeric_limits<float>::quiet_NaN());
    }
  }
  EXPECT_TRUE(Attend(*engine_, *state, query(0), 2) == expected);
}

// The recurrence, token by token in scalar code, has the bits of the engine.
TEST_P(GatedBits, EngineHasTheBitsOfTheReference) {
  if (!GemmHonoursChain()) GTEST_SKIP() << "this oneDNN does not keep the chain contract";
  const auto& layer = static_cast<const GatedEngine&>(*engine_).layer();
  std::vector<RefGatedHead> heads;
  for (std::int64_t h = 0; h < shape().kv_heads; ++h) heads.emplace_back(layer, h);
  const std::int64_t gates = stream_.log_decays.empty()
                                 ? 0
                                 : std::ssize(stream_.log_decays) / (kTokens * shape().kv_heads);
  auto state = EmptyLayer(*engine_);
  for (std::int64_t token = 0; token < 64 * 3 + 4; ++token) {
    for (std::int64_t h = 0; h < shape().kv_heads; ++h) {
      const std::int64_t at = token * shape().kv_heads + h;
      heads[Size(h)].Append(
          stream_.keys.data() + at * shape().key_dim,
          stream_.values.data() + at * shape().value_dim, stream_.log_decays.data() + at * gates,
          stream_.rates.empty() ? 0.0F : stream_.rates[Size(at)], stream_.mask[Size(token)] == 0);
    }
    state = Append(*engine_, stream_, state, token + 1);
    if (token % 31 != 0 && token % 64 > 1) continue;
    const Answers answers = Attend(*engine_, *state, query(0), 1);
    for (std::int64_t h = 0; h < shape().query_heads; ++h) {
      std::vector<float> row(query(0) + h * shape().key_dim, query(0) + (h + 1) * shape().key_dim);
      for (float& q : row) q *= shape().scale;
      const RefGatedHead::Answer expected =
          heads[Size(h / shape().group_size())].Query(row.data(), h);
      ASSERT_EQ(answers.denominators[Size(h)], expected.denominator) << token;
      for (std::int64_t j = 0; j < shape().value_dim; ++j) {
        ASSERT_EQ(answers.numerators[Size(h * shape().value_dim + j)], expected.numerator[Size(j)])
            << token << " " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, GatedBits, testing::ValuesIn(AllCases()),
                         [](const auto& rule) { return rule.param.name; });

}  // namespace
}  // namespace attnd::engine::gated_test
