#include "engine/kde/paper/key_panels.h"

#include <algorithm>

#include "engine/gemm.h"

namespace attnd::engine {

KeyPanels::KeyPanels(std::int64_t keys, std::int64_t dim)
    : keys_(keys),
      dim_(dim),
      data_(AlignedBuffer<float>::Uninitialized(panels() * (dim + 1) * kPanelKeys)) {}

void KeyPanels::Pack(std::int64_t panel, Rows rows, const std::int64_t* chosen,
                     const double* biases) {
  float* data = data_.data() + panel * (dim_ + 1) * kPanelKeys;
  const std::int64_t first = panel * kPanelKeys;
  const std::int64_t count = std::min(kPanelKeys, keys_ - first);
  if (count < kPanelKeys) std::fill_n(data, (dim_ + 1) * kPanelKeys, 0.0F);
  for (std::int64_t i = 0; i < count; ++i) {
    const float* key = rows.row(chosen == nullptr ? first + i : chosen[first + i]);
    for (std::int64_t c = 0; c < dim_; ++c) data[c * kPanelKeys + i] = key[c];
    data[dim_ * kPanelKeys + i] = biases == nullptr ? 0.0F : static_cast<float>(biases[first + i]);
  }
}

void KeyPanels::PackAll(Rows rows, const std::int64_t* chosen, const double* biases) {
  for (std::int64_t panel = 0; panel < panels(); ++panel) Pack(panel, rows, chosen, biases);
}

void KeyPanels::Scores(const float* queries, std::int64_t padded_rows, std::int64_t panel,
                       float* scores) const {
  const std::int64_t inner = dim_ + 1;
  GemmNN(padded_rows, kPanelKeys, inner, queries, inner, data_.data() + panel * inner * kPanelKeys,
         kPanelKeys, /*accumulate=*/false, scores, kPanelKeys);
}

float* PackQueries(Rows queries, const std::int64_t* chosen, std::int64_t count, float scale,
                   Scratch& scratch) {
  const std::int64_t inner = queries.dim + 1;
  const std::int64_t padded = GemmPaddedRows(count);
  float* packed = scratch.Take(padded * inner);
  for (std::int64_t r = 0; r < count; ++r) {
    const float* row = queries.row(chosen == nullptr ? r : chosen[r]);
    for (std::int64_t c = 0; c < queries.dim; ++c) packed[r * inner + c] = scale * row[c];
    packed[r * inner + queries.dim] = 1;
  }
  std::fill_n(packed + count * inner, (padded - count) * inner, 0.0F);
  return packed;
}

}  // namespace attnd::engine
