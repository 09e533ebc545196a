#include "engine/linear/ref_linear.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/block.h"
#include "engine/gemm.h"

namespace attnd::engine {

RefLinearHead::RefLinearHead(const FeatureMap& map, std::int64_t key_dim, std::int64_t value_dim,
                             std::int64_t kv_head)
    : map_(map),
      key_dim_(key_dim),
      value_dim_(value_dim),
      kv_head_(kv_head),
      totals_(static_cast<std::size_t>(map.feature_dim() * (value_dim + 1)), 0.0) {}

void RefLinearHead::Append(const float* key, const float* value, bool masked) {
  if (std::ssize(tail_) == kBlockTokens) Seal();
  Token token;
  token.features.resize(static_cast<std::size_t>(map_.feature_dim()));
  token.exponent = 0;
  Scratch scratch;
  map_.MapKeys({key, key_dim_, 1, kv_head_, &position_},
               {token.features.data(), map_.feature_dim(), &token.exponent}, scratch);
  token.columns.assign(value, value + value_dim_);
  token.columns.push_back(1.0F);
  token.masked = masked;
  tail_.push_back(std::move(token));
  ++position_;
}

void RefLinearHead::Seal() {
  std::int32_t block_exponent = kNoExponent;
  for (const Token& token : tail_) {
    if (!token.masked) block_exponent = std::max(block_exponent, token.exponent);
  }
  std::vector<float> sums(totals_.size(), 0.0F);
  for (const Token& token : tail_) {
    if (token.masked) continue;
    any_sealed_ = true;
    const float factor = ExponentFactor(token.exponent, block_exponent);
    std::size_t at = 0;
    for (const float feature : token.features) {
      for (const float column : token.columns) {
        sums[at] = std::fma(feature * factor, column, sums[at]);
        ++at;
      }
    }
  }
  tail_.clear();
  if (block_exponent == kNoExponent) return;
  const std::int32_t exponent = std::max(totals_exponent_, block_exponent);
  for (std::size_t i = 0; i < totals_.size(); ++i) {
    totals_[i] = totals_[i] * ExponentFactorF64(totals_exponent_, exponent) +
                 static_cast<double>(sums[i]) * ExponentFactorF64(block_exponent, exponent);
  }
  totals_exponent_ = exponent;
}

RefLinearHead::Answer RefLinearHead::Query(const float* query, std::int64_t query_head,
                                           std::int64_t position) const {
  const auto c = static_cast<std::size_t>(map_.feature_dim());
  const auto columns = static_cast<std::size_t>(value_dim_ + 1);
  std::vector<float> features(c);
  std::int32_t query_exponent = 0;
  Scratch scratch;
  map_.MapQueries({query, key_dim_, 1, query_head, &position},
                  {features.data(), map_.feature_dim(), &query_exponent}, scratch);

  std::int32_t largest = totals_exponent_;
  for (const Token& token : tail_) {
    if (!token.masked) largest = std::max(largest, token.exponent);
  }
  Answer answer;
  answer.empty = !any_sealed_;
  std::vector<float> result(columns, 0.0F);
  for (std::size_t panel = 0; panel < c && any_sealed_; panel += kGemmInnerPanel) {
    std::vector<float> chain(columns, 0.0F);
    for (std::size_t i = panel; i < c && i < panel + kGemmInnerPanel; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        chain[j] = std::fma(features[i], static_cast<float>(totals_[i * columns + j]), chain[j]);
      }
    }
    for (std::size_t j = 0; j < columns; ++j) result[j] += chain[j];
  }
  for (float& sum : result) sum *= ExponentFactor(totals_exponent_, largest);

  std::vector<float> tail(columns, 0.0F);
  for (const Token& token : tail_) {
    if (token.masked) continue;
    answer.empty = false;
    float score = 0.0F;
    for (std::size_t panel = 0; panel < c; panel += kGemmInnerPanel) {
      float chain = 0.0F;
      for (std::size_t i = panel; i < c && i < panel + kGemmInnerPanel; ++i) {
        chain = std::fma(features[i], token.features[i], chain);
      }
      score += chain;
    }
    score *= ExponentFactor(token.exponent, largest);
    for (std::size_t j = 0; j < columns; ++j) {
      tail[j] = std::fma(score, token.columns[j], tail[j]);
    }
  }
  for (std::size_t j = 0; j < columns; ++j) result[j] += tail[j];
  answer.exponent = answer.empty ? 0 : query_exponent + largest;
  answer.denominator = result.back();
  result.pop_back();
  answer.numerator = std::move(result);
  return answer;
}

}  // namespace attnd::engine
