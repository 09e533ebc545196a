#include "engine/kde/index/ranked_rows.h"

#include <hwy/contrib/sort/vqsort.h>

namespace attnd::engine {

void SortRows(std::span<std::uint64_t> rows) {
  hwy::Sorter()(rows.data(), rows.size(), hwy::SortAscending());
}

}  // namespace attnd::engine
