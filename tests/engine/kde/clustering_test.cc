// Clustering: a permutation, deterministic, in leaves of 64, and worth its time.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "engine/block.h"
#include "engine/kde/index/bisection.h"
#include "engine/kde/index/leaf_assignment.h"
#include "gtest/gtest.h"
#include "tests/data/real_data.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

std::vector<std::int32_t> InOrder(std::int64_t count) {
  std::vector<std::int32_t> order(Size(count));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<std::int32_t> Bisected(const KeyMatrix& keys) {
  std::vector<std::int32_t> order = InOrder(keys.count);
  Bisection bisection(keys, order, kBlockTokens);
  std::int64_t steps = 1;
  while (!bisection.Step()) ++steps;
  EXPECT_LE(steps, std::max(bisection.steps(), std::int64_t{1}));
  return order;
}

void Reassign(const KeyMatrix& keys, std::vector<std::int32_t>& order) {
  Scratch scratch;
  for (std::int64_t first = 0; first < keys.count; first += kGroupKeys) {
    const std::int64_t count = std::min(kGroupKeys, keys.count - first);
    ReassignLeaves(keys, std::span(order).subspan(Size(first), Size(count)), scratch);
  }
}

bool IsPermutation(std::vector<std::int32_t> order) {
  std::sort(order.begin(), order.end());
  return order == InOrder(static_cast<std::int64_t>(order.size()));
}

// Sum of squared distances to the means of runs of 64.
double VarianceWithin(const KeyMatrix& keys, const std::vector<std::int32_t>& order) {
  double sum = 0.0;
  for (std::int64_t first = 0; first < keys.count; first += kBlockTokens) {
    const std::int64_t end = std::min(first + kBlockTokens, keys.count);
    for (std::int64_t c = 0; c < keys.dim; ++c) {
      double mean = 0.0;
      for (std::int64_t i = first; i < end; ++i) {
        mean += static_cast<double>(keys.row(order[Size(i)])[c]) / static_cast<double>(end - first);
      }
      for (std::int64_t i = first; i < end; ++i) {
        const double off = static_cast<double>(keys.row(order[Size(i)])[c]) - mean;
        sum += off * off;
      }
    }
  }
  return sum;
}

TEST(KdeClusteringTest, IsAPermutationOfAnyNumberOfKeysAndAlwaysTheSame) {
  for (const std::int64_t count : {1, 2, 63, 64, 65, 127, 128, 129, 1000, 4097}) {
    for (const std::int64_t dim : {1, 7, 16}) {
      const std::vector<float> values = RandomValues(count * dim, 71, 0.2F);
      const KeyMatrix keys = {values.data(), count, dim};
      std::vector<std::int32_t> order = Bisected(keys);
      EXPECT_TRUE(IsPermutation(order)) << count;
      std::vector<std::int32_t> again = Bisected(keys);
      Reassign(keys, order);
      Reassign(keys, again);
      EXPECT_TRUE(IsPermutation(order)) << count;
      EXPECT_EQ(order, again) << count;
      for (std::int64_t i = 1; i < count; ++i) {
        if (i % kBlockTokens != 0) {
          ASSERT_LT(order[Size(i - 1)], order[Size(i)]) << count;
        }
      }
    }
  }
}

TEST(KdeClusteringTest, FindsClustersThatAreThere) {
  const std::int64_t dim = 8;
  const std::int64_t clusters = 32;
  const std::vector<float> centres = RandomValues(clusters * dim, 72, 0.2F);
  std::vector<float> values = RandomValues(clusters * kBlockTokens * dim, 73, 1e-3F);
  for (std::int64_t i = 0; i < clusters * kBlockTokens; ++i) {
    for (std::int64_t c = 0; c < dim; ++c) {
      values[Size(i * dim + c)] += centres[Size(i % clusters * dim + c)];
    }
  }
  const KeyMatrix keys = {values.data(), clusters * kBlockTokens, dim};
  std::vector<std::int32_t> order = Bisected(keys);
  Reassign(keys, order);
  Reassign(keys, order);
  EXPECT_LT(VarianceWithin(keys, order), 1e-3 * VarianceWithin(keys, InOrder(keys.count)));
}

TEST(KdeClusteringTest, EachStageBringsWordVectorsNearerTogether) {
  const data::TensorSet set = data::WordVectors();
  std::vector<float> values = set.layers.front().keys;
  for (float& value : values) value *= 0.125F;
  const KeyMatrix keys = {values.data(), set.tokens, set.shape.key_dim};
  std::vector<std::int32_t> order = Bisected(keys);
  const double unordered = VarianceWithin(keys, InOrder(keys.count));
  const double bisected = VarianceWithin(keys, order);
  Reassign(keys, order);
  const double reassigned = VarianceWithin(keys, order);
  EXPECT_LT(bisected, 0.85 * unordered);
  EXPECT_LT(reassigned, 0.96 * bisected);
}

TEST(KdeClusteringTest, EqualKeysAreNoTrouble) {
  const std::vector<float> values(Size(4000), 0.25F);
  const KeyMatrix keys = {values.data(), 1000, 4};
  std::vector<std::int32_t> order = Bisected(keys);
  Reassign(keys, order);
  EXPECT_TRUE(IsPermutation(order));
}

}  // namespace
}  // namespace attnd::engine
