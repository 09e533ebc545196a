// What the tests of the modes CERTIFIED and PAPER share.
#ifndef ATTND_TESTS_ENGINE_KDE_MODES_HARNESS_H_
#define ATTND_TESTS_ENGINE_KDE_MODES_HARNESS_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_config.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/index_harness.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::engine::kde_test {

using Mode = KdeConfig::Mode;

inline constexpr LayerShape kModeShape = {2, 6, 20, 24, 0.3F};
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline std::uint8_t Number(AnswerPath path) { return static_cast<std::uint8_t>(path); }

inline Asked AskedOf(const Accuracy& accuracy, std::int64_t top_k = 0) {
  Asked asked;
  asked.accuracy = accuracy;
  asked.top_k = top_k;
  return asked;
}

// As the oracle says, and said to be exact.
inline void ExpectExact(const Tokens& tokens, const std::vector<float>& queries,
                        const Answers& answers) {
  const std::int64_t count = std::ssize(queries) / tokens.shape.query_row();
  const oracle::Answers truth =
      oracle::Softmax(tokens.context(), {queries.data(), oracle::AllVisible(count, tokens.count)});
  EXPECT_LT(exact_test::RelativeError(answers.exact.outputs, truth.outputs), 3e-6);
  EXPECT_LT(exact_test::RelativeError(answers.exact.log_normalizers, truth.log_normalizers), 2e-6);
  const auto unmasked = std::ranges::count(tokens.mask, 1);
  for (std::size_t row = 0; row < answers.errors.size(); ++row) {
    ASSERT_EQ(answers.exact.flags[row], 0);
    ASSERT_EQ(answers.errors[row], 0.0F);
    ASSERT_EQ(answers.masses[row], 1.0F);
    ASSERT_EQ(answers.bounds[2 * row], answers.exact.log_normalizers[row]);
    ASSERT_EQ(answers.bounds[2 * row + 1], answers.exact.log_normalizers[row]);
    ASSERT_EQ(answers.keys[row], unmasked);
    ASSERT_EQ(answers.paths[row], Number(AnswerPath::kExact));
  }
}

// Without a token that is seen.
inline void ExpectEmpty(const Answers& answers) {
  for (std::size_t row = 0; row < answers.errors.size(); ++row) {
    ASSERT_EQ(answers.exact.flags[row], static_cast<std::uint8_t>(RowFlag::kEmpty));
    ASSERT_EQ(answers.exact.log_normalizers[row], -kInfinity);
    ASSERT_EQ(answers.errors[row], 0.0F);
    ASSERT_EQ(answers.bounds[2 * row], -kInfinity);
    ASSERT_EQ(answers.bounds[2 * row + 1], -kInfinity);
    ASSERT_EQ(answers.keys[row], 0);
    ASSERT_EQ(answers.paths[row], Number(AnswerPath::kExact));
  }
  for (const float x : answers.exact.outputs) ASSERT_EQ(x, 0.0F);
  for (const std::int64_t position : answers.exact.top_positions) ASSERT_EQ(position, -1);
}

inline Tokens FirstTokens(const Tokens& tokens, std::int64_t count) {
  const LayerShape& shape = tokens.shape;
  return {shape,
          count,
          {tokens.keys.begin(), tokens.keys.begin() + count * shape.key_row()},
          {tokens.values.begin(), tokens.values.begin() + count * shape.value_row()},
          {tokens.mask.begin(), tokens.mask.begin() + count}};
}

}  // namespace attnd::engine::kde_test

#endif  // ATTND_TESTS_ENGINE_KDE_MODES_HARNESS_H_
