// Rows in the order of numbers: what a stable sort by the numbers gives.
#include "engine/kde/index/ranked_rows.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

TEST(KdeRankedRowsTest, AreSortedByNumbersAndThenByRows) {
  for (const std::int64_t count : {0, 1, 2, 17, 1000, 20000}) {
    std::vector<float> numbers = RandomValues(count, 711);
    for (std::int64_t i = 0; i < count; i += 3) numbers[Size(i)] = numbers[Size(i / 2)];
    if (count > 10) {
      numbers[3] = -std::numeric_limits<float>::infinity();
      numbers[4] = std::numeric_limits<float>::infinity();
      numbers[5] = -0.0F;
      numbers[6] = 0.0F;
      numbers[7] = -0.0F;
    }
    std::vector<std::uint64_t> ranked;
    for (std::int64_t i = 0; i < count; ++i) {
      ranked.push_back(RankedRow(numbers[Size(i)], static_cast<std::int32_t>(i)));
    }
    SortRows(ranked);
    std::vector<std::int32_t> expected(Size(count));
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](std::int32_t a, std::int32_t b) {
      return numbers[Size(a)] < numbers[Size(b)];
    });
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(RowOf(ranked[Size(i)]), expected[Size(i)]) << count << " " << i;
    }
  }
}

}  // namespace
}  // namespace attnd::engine
