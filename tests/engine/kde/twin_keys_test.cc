// Keys that are far from their leaf's mean and near another key come to lie in that key's leaf.
#include "engine/kde/index/twin_keys.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "engine/block.h"
#include "engine/kde/index/leaf_assignment.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kDim = 16;

// Leaves of keys about centres of their own, in the order of the keys.
struct Leaves {
  explicit Leaves(std::int64_t count)
      : values(RandomValues(count * kBlockTokens * kDim, 601, 0.1F)),
        keys{values.data(), count * kBlockTokens, kDim},
        order(Size(keys.count)) {
    const std::vector<float> centres = RandomValues(count * kDim, 602, 1.0F);
    for (std::int64_t i = 0; i < keys.count * kDim; ++i) {
      values[Size(i)] += centres[Size(i / kDim / kBlockTokens * kDim + i % kDim)];
    }
    std::iota(order.begin(), order.end(), 0);
  }

  std::int64_t LeafOf(std::int64_t key) const {
    const auto at = std::find(order.begin(), order.end(), static_cast<std::int32_t>(key));
    return (at - order.begin()) / kBlockTokens;
  }

  // Key b becomes a key far from its leaf's mean and next to key a.
  void MakeTwins(std::int64_t a, std::int64_t b, std::uint32_t seed) {
    const std::vector<float> off = RandomValues(kDim, seed, 0.02F);
    for (std::int64_t c = 0; c < kDim; ++c) {
      values[Size(b * kDim + c)] = values[Size(a * kDim + c)] + off[Size(c)];
    }
  }

  void JoinTwins() {
    Scratch scratch;
    TwinKeys twins(keys, order);
    std::int64_t steps = 1;
    while (!twins.Step(scratch)) ++steps;
    EXPECT_EQ(steps, TwinKeys::Steps(keys.count));
  }

  std::vector<float> values;
  KeyMatrix keys;
  std::vector<std::int32_t> order;
};

TEST(KdeTwinKeysTest, TwinsShareALeafAndNobodyIsLost) {
  Leaves leaves(40);
  for (std::int64_t i = 0; i < 30; ++i) {
    leaves.MakeTwins(i * kBlockTokens + 5, (i + 7) % 40 * kBlockTokens + 9,
                     610U + static_cast<std::uint32_t>(i));
  }
  leaves.JoinTwins();
  for (std::int64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(leaves.LeafOf(i * kBlockTokens + 5), leaves.LeafOf((i + 7) % 40 * kBlockTokens + 9))
        << i;
  }
  std::vector<std::int32_t> sorted = leaves.order;
  std::sort(sorted.begin(), sorted.end());
  for (std::int64_t i = 0; i < leaves.keys.count; ++i) ASSERT_EQ(sorted[Size(i)], i);
}

TEST(KdeTwinKeysTest, WhereThereAreNoneNothingMoves) {
  Leaves leaves(40);
  const std::vector<std::int32_t> before = leaves.order;
  leaves.JoinTwins();
  EXPECT_EQ(leaves.order, before);
}

TEST(KdeTwinKeysTest, EqualKeysAndFewOfThemAreNoTrouble) {
  for (const std::int64_t count : {1, 2, 64, 65, 1000}) {
    const std::vector<float> values(Size(count * kDim), 0.25F);
    std::vector<std::int32_t> order(Size(count));
    std::iota(order.begin(), order.end(), 0);
    const std::vector<std::int32_t> before = order;
    Scratch scratch;
    TwinKeys twins({values.data(), count, kDim}, order);
    while (!twins.Step(scratch)) {
    }
    EXPECT_EQ(order, before) << count;
  }
}

// A key of an isolated leaf gave way to the twin of another one, and was read no more.
TEST(KdeTwinKeysTest, IsolatedKeysStay) {
  Leaves leaves(100);
  const std::int64_t isolated = FirstIsolatedLeaf(leaves.keys.count);
  ASSERT_EQ(isolated, 99);
  for (std::int64_t i = 0; i < 20; ++i) {
    leaves.MakeTwins(isolated * kBlockTokens + i, 3 * i * kBlockTokens + 9,
                     640U + static_cast<std::uint32_t>(i));
  }
  leaves.JoinTwins();
  for (std::int64_t i = 0; i < kBlockTokens; ++i) {
    EXPECT_EQ(leaves.LeafOf(isolated * kBlockTokens + i), isolated) << i;
  }
}

}  // namespace
}  // namespace attnd::engine
