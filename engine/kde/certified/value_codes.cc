#include "engine/kde/certified/value_codes.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "engine/block.h"
#include "engine/kde/certified/code_step.h"
#include "engine/simd/code_scan.h"

namespace attnd::engine {

CodedValues::CodedValues(std::int64_t padded_value_dim, std::int64_t blocks)
    : padded_value_dim_(padded_value_dim),
      codes_(blocks * kBlockTokens * padded_value_dim),
      steps_(blocks * kBlockTokens),
      centres_(static_cast<std::size_t>(blocks)) {}

void CodedValues::Encode(std::int64_t index, const BlockView<float>& block, const float* centre) {
  centres_[static_cast<std::size_t>(index)] = centre;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    const float* value = block.values + j * padded_value_dim_;
    std::int8_t* codes =
        codes_.data() + (index * kBlockTokens + j / 2 * 2) * padded_value_dim_ + j % 2;
    const bool valid = (block.valid >> j & 1U) != 0;
    float range = 0;
    for (std::int64_t c = 0; valid && c < padded_value_dim_; ++c) {
      range = std::max(range, std::abs(value[c] - (centre == nullptr ? 0.0F : centre[c])));
    }
    const float step = CodeStep(range, kMaxKeyCode);
    steps_.data()[index * kBlockTokens + j] = step;
    const float inverse = step > 0 ? 1 / step : 0.0F;
    for (std::int64_t c = 0; c < padded_value_dim_; ++c) {
      const float rest = valid ? value[c] - (centre == nullptr ? 0.0F : centre[c]) : 0.0F;
      codes[2 * c] =
          step > 0 ? static_cast<std::int8_t>(ToCode(rest * inverse, kMaxKeyCode)) : std::int8_t{0};
    }
  }
}

ValueCodes CodedValues::block(std::int64_t index) const {
  return {.codes = codes_.data() + index * kBlockTokens * padded_value_dim_,
          .steps = steps_.data() + index * kBlockTokens,
          .centre = centres_[static_cast<std::size_t>(index)]};
}

std::int64_t CodedValues::bytes() const {
  return codes_.bytes() + steps_.bytes() +
         static_cast<std::int64_t>(centres_.capacity() * sizeof(const float*));
}

std::int64_t CodedValues::BlockBytes(std::int64_t padded_value_dim) {
  return kBlockTokens * (padded_value_dim + static_cast<std::int64_t>(sizeof(float))) +
         static_cast<std::int64_t>(sizeof(const float*));
}

WeightedCodes::WeightedCodes(const ValueCodes& block, const float* weights)
    : block_(block), weights_(weights) {
  if (block.codes != nullptr) step_ = CodeWeights(weights, block.steps, whole_.data());
}

void WeightedCodes::AddTo(std::int64_t padded_value_dim, float* sum) const {
  if (block_.codes == nullptr) return;
  SumCodes(whole_.data(), step_, block_.codes, padded_value_dim, sum);
}

void WeightedCodes::Control(std::int64_t row, std::int64_t padded_value_dim, float* out) const {
  const float whole = whole_[static_cast<std::size_t>(row)];
  const float factor = step_ * whole / weights_[row];
  const std::int8_t* codes =
      block_.codes == nullptr ? nullptr : block_.codes + row / 2 * 2 * padded_value_dim + row % 2;
  for (std::int64_t c = 0; c < padded_value_dim; ++c) {
    float control = block_.centre == nullptr ? 0.0F : block_.centre[c];
    if (codes != nullptr) control += factor * static_cast<float>(codes[2 * c]);
    out[c] = control;
  }
}

}  // namespace attnd::engine
