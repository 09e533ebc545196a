#include "engine/efficient/ref_efficient.h"

#include <algorithm>
#include <cmath>

#include "engine/block.h"
#include "engine/efficient/key_columns.h"
#include "engine/gemm.h"
#include "engine/simd/maps.h"

namespace attnd::engine {

RefEfficientHead::RefEfficientHead(std::int64_t key_dim, std::int64_t value_dim)
    : key_dim_(static_cast<std::size_t>(key_dim)),
      value_dim_(static_cast<std::size_t>(value_dim)),
      totals_(key_dim_ * (value_dim_ + 1), 0.0),
      steps_(key_dim_, kNoSteps) {}

void RefEfficientHead::Append(const float* key, const float* value, bool masked) {
  if (open_rows_ == kBlockTokens) Seal();
  ++open_rows_;
  if (masked) return;
  Token token;
  for (std::size_t a = 0; a < key_dim_; ++a) {
    const SplitKey split = Split(key[a]);
    float mantissa = 0;
    Exp(&split.log_mantissa, &mantissa, 1);
    token.mantissas.push_back(mantissa);
    token.steps.push_back(split.steps);
  }
  token.values.assign(value, value + value_dim_);
  token.values.push_back(1.0F);
  tail_.push_back(std::move(token));
}

std::int32_t RefEfficientHead::LargestSteps(std::size_t column) const {
  std::int32_t largest = steps_[column];
  for (const Token& token : tail_) largest = std::max(largest, token.steps[column]);
  return largest;
}

void RefEfficientHead::Seal() {
  const std::size_t columns = value_dim_ + 1;
  for (std::size_t a = 0; a < key_dim_; ++a) {
    const std::int32_t largest = LargestSteps(a);
    for (std::size_t j = 0; j < columns; ++j) {
      float sum = 0;
      for (const Token& token : tail_) {
        sum = std::fma(token.mantissas[a] * StepFactor(token.steps[a], largest), token.values[j],
                       sum);
      }
      double& total = totals_[a * columns + j];
      total =
          total * static_cast<double>(StepFactor(steps_[a], largest)) + static_cast<double>(sum);
    }
    steps_[a] = largest;
  }
  tail_.clear();
  open_rows_ = 0;
}

std::vector<float> RefEfficientHead::Query(const float* query) const {
  const std::size_t columns = value_dim_ + 1;
  const bool any_sealed = steps_[0] != kNoSteps;
  if (!any_sealed && tail_.empty()) return {};
  const float max = *std::max_element(query, query + key_dim_);
  std::vector<float> weights(key_dim_);
  std::vector<std::int32_t> largest(key_dim_);
  for (std::size_t a = 0; a < key_dim_; ++a) {
    largest[a] = LargestSteps(a);
    float tail_sum = 0;
    for (const Token& token : tail_) {
      tail_sum += token.mantissas[a] * StepFactor(token.steps[a], largest[a]);
    }
    const float sum =
        static_cast<float>(totals_[a * columns + value_dim_]) * StepFactor(steps_[a], largest[a]) +
        tail_sum;
    ExpShifted(query + a, max, 0.0F, &weights[a], 1);
    weights[a] *= 1.0F / sum;
  }

  std::vector<float> result(columns, 0.0F);
  for (std::size_t panel = 0; panel < key_dim_ && any_sealed; panel += kGemmInnerPanel) {
    std::vector<float> chain(columns, 0.0F);
    for (std::size_t a = panel; a < key_dim_ && a < panel + kGemmInnerPanel; ++a) {
      const float weight = weights[a] * StepFactor(steps_[a], largest[a]);
      for (std::size_t j = 0; j < columns; ++j) {
        chain[j] = std::fma(weight, static_cast<float>(totals_[a * columns + j]), chain[j]);
      }
    }
    for (std::size_t j = 0; j < columns; ++j) result[j] += chain[j];
  }
  std::vector<float> tail(columns, 0.0F);
  for (const Token& token : tail_) {
    float product = 0;
    for (std::size_t panel = 0; panel < key_dim_; panel += kGemmInnerPanel) {
      float chain = 0;
      for (std::size_t a = panel; a < key_dim_ && a < panel + kGemmInnerPanel; ++a) {
        chain = std::fma(weights[a], token.mantissas[a] * StepFactor(token.steps[a], largest[a]),
                         chain);
      }
      product += chain;
    }
    for (std::size_t j = 0; j < columns; ++j) {
      tail[j] = std::fma(product, token.values[j], tail[j]);
    }
  }
  for (std::size_t j = 0; j < columns; ++j) result[j] += tail[j];
  return result;
}

}  // namespace attnd::engine
