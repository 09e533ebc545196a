#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/block.h"
#include "engine/kde/certified/heavy_keys.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<std::int64_t> Chosen(HeavyKeys& heavy, const std::vector<float>& scores, std::int64_t k,
                                 float margin, std::int64_t most) {
  heavy.Reset(k, margin, most);
  for (std::int64_t b = 0; b * kBlockTokens < std::ssize(scores); ++b) {
    heavy.Offer(b, scores.data() + b * kBlockTokens);
  }
  std::vector<std::int64_t> keys;
  for (const HeavyKey& chosen : heavy.Choose()) {
    EXPECT_EQ(chosen.score, scores[Size(chosen.key)]);
    keys.push_back(chosen.key);
  }
  return keys;
}

// By sorting.
std::vector<std::int64_t> Expected(const std::vector<float>& scores, std::int64_t k, float margin,
                                   std::int64_t most) {
  std::vector<std::int64_t> keys;
  for (std::int64_t i = 0; i < std::ssize(scores); ++i) {
    if (scores[Size(i)] > -kInfinity) keys.push_back(i);
  }
  std::stable_sort(keys.begin(), keys.end(), [&](std::int64_t a, std::int64_t b) {
    return scores[Size(a)] > scores[Size(b)];
  });
  std::size_t count = 0;
  while (count < keys.size() && count < Size(most) &&
         (count < Size(k) || scores[Size(keys[count])] >= scores[Size(keys[0])] - margin)) {
    ++count;
  }
  keys.resize(count);
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST(KdeHeavyKeysTest, AreThePrefixOfTheSortedScores) {
  HeavyKeys heavy;  // keeps nothing from one row to the next
  for (const std::int64_t blocks : {1, 2, 9, 100}) {
    std::vector<float> scores = RandomValues(blocks * kBlockTokens, 1);
    for (std::size_t i = 0; i < scores.size(); i += 5) scores[i] = -kInfinity;
    for (const std::int64_t k : {0, 1, 17, 64, 500}) {
      for (const float margin : {0.0F, 0.7F, 100.0F}) {
        for (const std::int64_t most : {k, k + 1, k + 100}) {
          EXPECT_EQ(Chosen(heavy, scores, k, margin, most), Expected(scores, k, margin, most))
              << blocks << " blocks, k " << k << ", margin " << margin << ", most " << most;
        }
      }
    }
  }
}

TEST(KdeHeavyKeysTest, OfEqualScoresTheEarlierGoFirst) {
  HeavyKeys heavy;
  std::vector<float> scores = RandomValues(50 * kBlockTokens, 2);
  for (float& score : scores) score = std::round(2 * score) / 2;  // about ten values
  for (const std::int64_t k : {1, 10, 100, 1000}) {
    EXPECT_EQ(Chosen(heavy, scores, k, 0.0F, k), Expected(scores, k, 0.0F, k));
  }
  const std::vector<float> equal(10 * kBlockTokens, 1.5F);
  EXPECT_EQ(Chosen(heavy, equal, 3, 0.0F, 70), Expected(equal, 3, 0.0F, 70));
}

TEST(KdeHeavyKeysTest, AscendingAndDescendingScores) {
  HeavyKeys heavy;
  std::vector<float> scores(100 * kBlockTokens);
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i);
  EXPECT_EQ(Chosen(heavy, scores, 100, 0.0F, 100), Expected(scores, 100, 0.0F, 100));
  std::reverse(scores.begin(), scores.end());
  EXPECT_EQ(Chosen(heavy, scores, 100, 0.0F, 100), Expected(scores, 100, 0.0F, 100));
}

TEST(KdeHeavyKeysTest, NothingToChooseFrom) {
  HeavyKeys heavy;
  EXPECT_TRUE(Chosen(heavy, std::vector<float>(128, -kInfinity), 10, 1.0F, 20).empty());
  EXPECT_TRUE(Chosen(heavy, {}, 10, 1.0F, 20).empty());
  EXPECT_TRUE(Chosen(heavy, std::vector<float>(128, 1.0F), 0, 1.0F, 0).empty());
}

}  // namespace
}  // namespace attnd::engine
