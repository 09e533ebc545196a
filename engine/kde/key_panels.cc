#include "engine/kde/key_panels.h"

#include <algorithm>

#include "engine/gemm.h"

namespace attnd::engine {

KeyPanels::KeyPanels(Rows keys, std::span<const std::int64_t> chosen, const double* biases)
    : keys_(static_cast<std::int64_t>(chosen.size())), dim_(keys.dim) {
  Pack(keys, chosen.data(), biases);
}

KeyPanels::KeyPanels(Rows keys, const double* biases) : keys_(keys.count), dim_(keys.dim) {
  Pack(keys, nullptr, biases);
}

void KeyPanels::Pack(Rows keys, const std::int64_t* chosen, const double* biases) {
  const std::int64_t panel_floats = (dim_ + 1) * kPanelKeys;
  data_ = AlignedBuffer<float>(panels() * panel_floats);
  for (std::int64_t i = 0; i < keys_; ++i) {
    const float* key = keys.row(chosen == nullptr ? i : chosen[i]);
    float* column = data_.data() + i / kPanelKeys * panel_floats + i % kPanelKeys;
    for (std::int64_t c = 0; c < dim_; ++c) column[c * kPanelKeys] = key[c];
    if (biases != nullptr) column[dim_ * kPanelKeys] = static_cast<float>(biases[i]);
  }
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
