#include "engine/simd/row_lists.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/simd/nearest.h"
#include "gtest/gtest.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kRows = 40;

// Equal bits; any NaN for a NaN.
template <class T>
bool Same(T a, T b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

// Rows in an order of their own, some twice.
std::vector<std::int32_t> SomeOrder(std::int64_t count) {
  std::vector<std::int32_t> order;
  for (std::int64_t i = 0; i < count; ++i) {
    order.push_back(static_cast<std::int32_t>((i * 17 + 5) % kRows));
  }
  return order;
}

void ExpectAsPlainLoops(const std::vector<float>& rows, std::int64_t dim, std::int64_t count) {
  const auto size = static_cast<std::size_t>(dim);
  const std::vector<std::int32_t> order = SomeOrder(count);
  const RowList list = {rows.data(), dim, order.data(), count};
  const std::vector<float> x = RandomValues(dim, 2);

  std::vector<double> sums(size + 1, -7.0);
  SumRows(list, sums.data());
  for (std::size_t c = 0; c < size; ++c) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(list.row(i)[c]);
    ASSERT_TRUE(Same(sums[c], sum)) << dim << " " << count << " " << c;
  }
  ASSERT_EQ(sums[size], -7.0);

  std::vector<float> dots(order.size() + 1, -7.0F);
  std::vector<float> squares = dots;
  DotRows(list, x.data(), dots.data());
  SquareOffsets(list, x.data(), squares.data());
  std::vector<float> offset(size);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* row = list.row(i);
    for (std::size_t c = 0; c < size; ++c) offset[c] = row[c] - x[c];
    const auto at = static_cast<std::size_t>(i);
    ASSERT_TRUE(Same(dots[at], Dot(row, x.data(), dim))) << dim << " " << i;
    ASSERT_TRUE(Same(squares[at], Dot(offset.data(), offset.data(), dim))) << dim << " " << i;
  }
  ASSERT_EQ(dots[order.size()], -7.0F);
  ASSERT_EQ(squares[order.size()], -7.0F);
}

TEST(RowLists, AreAsPlainLoopsAtEveryLength) {
  for (std::int64_t dim = 1; dim < 110; ++dim) {
    const std::vector<float> rows = RandomValues(kRows * dim, 1);
    for (const std::int64_t count : {0, 1, 2, 5, 39}) ExpectAsPlainLoops(rows, dim, count);
  }
}

TEST(RowLists, PassOnWhatIsNotFinite) {
  for (const float odd :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0U, 31U, 37U, 39U}) {
      std::vector<float> rows = RandomValues(kRows * 41, 3);
      rows[205 + at] = odd;
      ExpectAsPlainLoops(rows, 41, 7);
    }
  }
}

}  // namespace
}  // namespace attnd::engine
