#include "engine/kde/index/summary_table.h"

#include <algorithm>
#include <limits>

namespace attnd::engine {
namespace {
constexpr std::int64_t kStats = 6;
}  // namespace

SummaryTable::SummaryTable(const BlockLayout& layout, std::int64_t count)
    : layout_(layout),
      count_(count),
      means_t_(columns() * layout.key_dim),
      mean_values_(columns() * layout.padded_value_dim),
      stats_(kStats * columns()) {
  std::fill_n(stat(0), columns(), -std::numeric_limits<float>::infinity());
}

std::int64_t SummaryTable::Bytes(const BlockLayout& layout, std::int64_t count) {
  return RoundUp(count, kBlockTokens) * (layout.key_dim + layout.padded_value_dim + kStats) *
         static_cast<std::int64_t>(sizeof(float));
}

LeafStats SummaryTable::stats(std::int64_t first, std::int64_t columns) const {
  const float* stats = stats_.data() + first;
  const std::int64_t n = this->columns();
  return {columns, stats, stats + n, stats + 2 * n, stats + 3 * n, stats + 4 * n, stats + 5 * n};
}

void SummaryTable::Set(std::int64_t i, const LeafNumbers& numbers) {
  stat(0)[i] = numbers.log_count;
  stat(1)[i] = numbers.noise;
  stat(2)[i] = numbers.variance;
  stat(3)[i] = numbers.radius;
  stat(4)[i] = 1.0F;
  stat(5)[i] = 0.0F;
}

}  // namespace attnd::engine
