// Where clustering starts: leaves that were there are kept, other keys are cut into leaves, and
// neighbours are alike.
#include "engine/kde/index/first_leaves.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "engine/block.h"
#include "engine/kde/index/branch_summary.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kDim = 8;

// 64 keys about each of some centres, in an order in which the keys of a centre are together.
struct Clusters {
  Clusters(std::int64_t full, std::int64_t loose, std::uint32_t seed)
      : values(RandomValues((full * kBlockTokens + loose) * kDim, seed, 0.1F)),
        keys{values.data(), full * kBlockTokens + loose, kDim},
        order(Size(keys.count)),
        kept(full) {
    const std::vector<float> centres =
        RandomValues((keys.count / kBlockTokens + 1) * kDim, seed + 1, 2.0F);
    for (std::int64_t i = 0; i < keys.count * kDim; ++i) {
      values[Size(i)] += centres[Size(i / kDim / kBlockTokens * kDim + i % kDim)];
    }
    std::iota(order.begin(), order.end(), 0);
  }

  std::vector<float> values;
  KeyMatrix keys;
  std::vector<std::int32_t> order;
  std::int64_t kept;
};

void Start(Clusters& clusters) {
  FirstLeaves first(clusters.keys, clusters.kept, clusters.order);
  std::int64_t steps = 1;
  while (!first.Step()) ++steps;
  EXPECT_EQ(steps, first.steps());
}

TEST(KdeFirstLeavesTest, FullLeavesAreKeptAndEveryKeyIsThereOnce) {
  for (const std::int64_t full : {0, 1, 15, 16, 17, 40}) {
    for (const std::int64_t loose : {0, 1, 63, 64, 65, 300}) {
      if (full + loose == 0) continue;
      Clusters clusters(full, loose, 501);
      Start(clusters);
      std::vector<std::int32_t> sorted = clusters.order;
      std::sort(sorted.begin(), sorted.end());
      for (std::int64_t i = 0; i < clusters.keys.count; ++i) ASSERT_EQ(sorted[Size(i)], i);
      // A kept leaf's keys are some leaf's, whatever place it has now.
      for (std::int64_t first = 0; first + kBlockTokens <= clusters.keys.count;
           first += kBlockTokens) {
        std::set<std::int32_t> leaves;
        for (std::int64_t i = first; i < first + kBlockTokens; ++i) {
          leaves.insert(clusters.order[Size(i)] / static_cast<std::int32_t>(kBlockTokens));
        }
        if (*leaves.begin() < full) {
          ASSERT_EQ(leaves.size(), 1U) << full << " " << loose;
        }
      }
    }
  }
}

// Two leaves of each of 64 places, far from one another in the order: they become neighbours.
TEST(KdeFirstLeavesTest, LeavesThatAreAlikeShareABranch) {
  constexpr std::int64_t kPlaces = 64;
  Clusters clusters(2 * kPlaces, 0, 502);
  for (std::int64_t i = 0; i < kPlaces * kBlockTokens * kDim; ++i) {
    clusters.values[Size(i + kPlaces * kBlockTokens * kDim)] = clusters.values[Size(i)] + 0.01F;
  }
  Start(clusters);
  std::vector<std::int64_t> branch(Size(2 * kPlaces));
  for (std::int64_t leaf = 0; leaf < 2 * kPlaces; ++leaf) {
    branch[Size(clusters.order[Size(leaf * kBlockTokens)] / kBlockTokens)] = leaf / kBranchLeaves;
  }
  std::int64_t together = 0;
  for (std::int64_t i = 0; i < kPlaces; ++i) {
    together += branch[Size(i)] == branch[Size(i + kPlaces)] ? 1 : 0;
  }
  EXPECT_GE(together, kPlaces - 4);
}

TEST(KdeFirstLeavesTest, AreAlwaysTheSame) {
  Clusters one(20, 500, 503);
  Clusters other(20, 500, 503);
  Start(one);
  Start(other);
  EXPECT_EQ(one.order, other.order);
}

}  // namespace
}  // namespace attnd::engine
