#include "engine/linear/ref_linear.h"

#include <cmath>
#include <cstddef>

#include "engine/block.h"
#include "engine/gemm.h"

namespace attnd::engine {

RefLinearHead::RefLinearHead(const FeatureMap& map, std::int64_t key_dim, std::int64_t value_dim)
    : map_(map),
      key_dim_(key_dim),
      value_dim_(value_dim),
      totals_(static_cast<std::size_t>(map.feature_dim() * (value_dim + 1)), 0.0) {}

void RefLinearHead::Append(const float* key, const float* value, bool masked) {
  if (std::ssize(tail_) == kBlockTokens) Seal();
  Token token;
  token.features.resize(static_cast<std::size_t>(map_.feature_dim()));
  map_.MapKeys(key, key_dim_, 1, token.features.data(), map_.feature_dim());
  token.columns.assign(value, value + value_dim_);
  token.columns.push_back(1.0F);
  token.masked = masked;
  tail_.push_back(std::move(token));
}

void RefLinearHead::Seal() {
  std::vector<float> sums(totals_.size(), 0.0F);
  for (const Token& token : tail_) {
    if (token.masked) continue;
    any_sealed_ = true;
    std::size_t at = 0;
    for (const float feature : token.features) {
      for (const float column : token.columns) {
        sums[at] = std::fma(feature, column, sums[at]);
        ++at;
      }
    }
  }
  for (std::size_t i = 0; i < totals_.size(); ++i) totals_[i] += static_cast<double>(sums[i]);
  tail_.clear();
}

RefLinearHead::Answer RefLinearHead::Query(const float* query) const {
  const auto c = static_cast<std::size_t>(map_.feature_dim());
  const auto columns = static_cast<std::size_t>(value_dim_ + 1);
  std::vector<float> features(c);
  map_.MapQueries(query, key_dim_, 1, features.data(), map_.feature_dim());

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
    for (std::size_t j = 0; j < columns; ++j) {
      tail[j] = std::fma(score, token.columns[j], tail[j]);
    }
  }
  for (std::size_t j = 0; j < columns; ++j) result[j] += tail[j];
  answer.denominator = result.back();
  result.pop_back();
  answer.numerator = std::move(result);
  return answer;
}

}  // namespace attnd::engine
