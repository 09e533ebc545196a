// Keys and values in 8 bits: bounds of scores that hold, and what codes take.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/kde/certified_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::certified_test {
namespace {

struct Deviation {
  double most_of_bound = 0.0;  // the largest |s - s^| / eta
  double mean_eta = 0.0;
};

// Of all unmasked keys' scores, whose true values are computed in f64.
Deviation Measure(const Tokens& tokens, const std::vector<float>& queries, bool centred) {
  const CodedContext context(tokens, Controls::kNone, centred);
  Deviation deviation;
  double count = 0;
  CodedQuery coded;
  for (std::int64_t q = 0; q * tokens.key_dim < std::ssize(queries); ++q) {
    const float* query = queries.data() + q * tokens.key_dim;
    coded.Set(query, tokens.key_dim);
    for (std::size_t b = 0; b < context.blocks.size(); ++b) {
      const CertifiedBlock& block = context.blocks[b];
      std::vector<float> scores(kBlockTokens);
      std::vector<float> reference(kBlockTokens);
      coded.Scores(block.codes, scores.data());
      coded.RefScores(block.codes, reference.data());
      EXPECT_TRUE(SameBits(scores, reference));
      const ScoreBound bound = coded.Bound(block.codes);
      for (std::int64_t j = 0; j < kBlockTokens; ++j) {
        if ((block.block.valid >> j & 1U) == 0) continue;
        double score = 0;
        for (std::int64_t i = 0; i < tokens.key_dim; ++i) {
          score += static_cast<double>(query[i]) *
                   static_cast<double>(block.block.keys_t[i * kBlockTokens + j]);
        }
        const double difference = std::abs(score - static_cast<double>(scores[Size(j)]));
        const float eta = bound.Of(block.codes.errors[j]);
        EXPECT_LE(difference, static_cast<double>(eta)) << "block " << b << " key " << j;
        EXPECT_LE(eta, bound.Of(block.codes.max_error));
        if (eta > 0) {
          deviation.most_of_bound =
              std::max(deviation.most_of_bound, difference / static_cast<double>(eta));
        }
        deviation.mean_eta += static_cast<double>(eta);
        count += 1;
      }
    }
  }
  deviation.mean_eta /= count;
  return deviation;
}

TEST(KdeCertifiedCodesTest, ScoresStayWithinTheirBounds) {
  for (const std::int64_t d : {1, 2, 15, 64, 129}) {
    const Tokens tokens = RandomTokens(200, d, 3, 1);
    for (const bool centred : {false, true}) {
      const Deviation deviation = Measure(tokens, RandomValues(8 * d, 2), centred);
      // With one component a key is its step, exactly, and all that is left is rounding. With many
      // a key's error has to point along the query for the bound to be reached.
      EXPECT_GT(deviation.most_of_bound, d == 1 ? 0.05 : 0.2) << "d " << d;
    }
  }
}

TEST(KdeCertifiedCodesTest, WordVectorsAreHeldToATenthOfANat) {
  const data::TensorSet set = data::WordVectors();
  const std::int64_t d = set.shape.key_dim;
  Tokens tokens = RandomTokens(set.tokens, d, 1, 3);
  tokens.keys = set.layers[0].keys;
  std::vector<float> queries;
  for (std::int64_t q = 0; q < 16; ++q) {
    const auto row = set.layers[0].queries.begin() + q * 255 * d;
    queries.insert(queries.end(), row, row + d);
  }
  const Deviation deviation = Measure(tokens, queries, true);
  EXPECT_LT(deviation.mean_eta, 0.1);
  EXPECT_GT(deviation.mean_eta, 0.01);
}

// Keys and queries that 8 or 16 bits cannot hold well: the bound must grow with the error.
TEST(KdeCertifiedCodesTest, BoundsHoldForUnevenKeysAndQueries) {
  Tokens tokens = RandomTokens(128, 20, 3, 4);
  std::vector<float> queries = RandomValues(std::int64_t{4} * 20, 5);
  for (std::int64_t i = 0; i < 20; ++i) {
    tokens.keys[Size(i)] *= 1e6F;        // one giant key
    tokens.keys[Size(20 + i)] = 0.0F;    // one of zeros
    tokens.keys[Size(40 + i)] = 1e-30F;  // one below the steps that are held
    tokens.keys[Size(60 + i)] = i == 0 ? 1e4F : 1e-3F;
  }
  tokens.mask[7] = 0;
  queries[0] = 1e5F;
  queries[45] = 1e-20F;
  Measure(tokens, queries, false);
  Measure(tokens, queries, true);
}

TEST(KdeCertifiedCodesTest, BoundsAreUselessRatherThanWrongWhereNumbersLeaveF32) {
  Tokens tokens = RandomTokens(64, 4, 3, 6);
  tokens.keys[0] = 3e38F;
  tokens.keys[1] = -3e38F;
  const CodedContext context(tokens);
  CodedQuery query;
  const std::vector<float> row = {1e30F, 1e30F, 1.0F, 1.0F};
  query.Set(row.data(), 4);
  const KeyCodes& codes = context.blocks[0].codes;
  EXPECT_FALSE(query.Bound(codes).Of(codes.max_error) < 1e6F);
}

TEST(KdeCertifiedCodesTest, MaskedRowsDoNotCount) {
  Tokens tokens = RandomTokens(64, 8, 3, 7);
  Tokens without = tokens;
  for (std::int64_t i = 0; i < 8; ++i) {
    tokens.keys[Size(std::int64_t{3} * 8 + i)] = 1e9F;
    without.keys[Size(std::int64_t{3} * 8 + i)] = 0.0F;
  }
  tokens.mask[3] = without.mask[3] = 0;
  const CodedContext a(tokens);
  const CodedContext b(without);
  EXPECT_EQ(a.blocks[0].codes.max_error, b.blocks[0].codes.max_error);
  EXPECT_EQ(a.blocks[0].codes.max_norm, b.blocks[0].codes.max_norm);
}

// Within half a step of the values, and half of one of the weights times the largest code.
TEST(KdeCertifiedCodesTest, ControlsAreNearTheValuesAndTheirSumIsKnown) {
  const Tokens tokens = RandomTokens(100, 4, 33, 8);
  const CodedContext context(tokens);
  const std::int64_t columns = context.shape.padded_value_dim;
  std::vector<float> control(Size(columns));
  for (const CertifiedBlock& block : context.blocks) {
    std::vector<float> weights = RandomValues(kBlockTokens, 9);
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      const bool valid = (block.block.valid >> j & 1U) != 0;
      weights[Size(j)] = valid ? std::exp(weights[Size(j)]) : 0.0F;
    }
    float largest = 0;
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      largest = std::max(largest, weights[Size(j)] * block.controls.steps[j]);
    }
    const WeightedCodes weighted(block.controls, weights.data());
    std::vector<float> sum(control.size(), 0.0F);
    weighted.AddTo(columns, sum.data());
    std::vector<double> expected(control.size(), 0.0);
    for (std::int64_t j = 0; j < kBlockTokens; ++j) {
      if (weights[Size(j)] == 0.0F) continue;
      weighted.Control(j, columns, control.data());
      for (std::size_t c = 0; c < control.size(); ++c) {
        expected[c] += static_cast<double>(weights[Size(j)]) *
                       static_cast<double>(control[c] - block.controls.centre[c]);
        if (c >= 33) continue;
        EXPECT_NEAR(control[c], block.block.values[j * columns + static_cast<std::int64_t>(c)],
                    0.51F * (block.controls.steps[j] + 127 * largest / 32767 / weights[Size(j)]));
      }
    }
    for (std::size_t c = 0; c < control.size(); ++c) EXPECT_NEAR(sum[c], expected[c], 1e-4);
  }
}

// 8 bits per component and 8 bytes per key, 4 per value, beside what a block shares.
TEST(KdeCertifiedCodesTest, TakeAFewBytesOverAByteAComponent) {
  const std::int64_t blocks = 256;
  const CodedKeys keys(100, blocks);
  const CodedValues values(112, blocks);
  const auto tokens = static_cast<double>(blocks * kBlockTokens);
  EXPECT_LE(static_cast<double>(keys.bytes()) / tokens, 100 + 8 + 0.5);
  EXPECT_LE(static_cast<double>(values.bytes()) / tokens, 112 + 4 + 0.5);
  EXPECT_EQ(keys.bytes(), blocks * CodedKeys::BlockBytes(100));
  EXPECT_EQ(values.bytes(), blocks * CodedValues::BlockBytes(112));
  // Of the raw keys and values that lie beside them.
  EXPECT_LT(static_cast<double>(keys.bytes() + values.bytes()) / tokens, 0.27 * 4 * (100 + 112));
}

}  // namespace
}  // namespace attnd::engine::certified_test
