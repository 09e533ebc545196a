#include "engine/gated/ref_gated.h"

#include <cmath>
#include <cstddef>

#include "engine/gated/decays.h"
#include "engine/gemm.h"
#include "engine/scratch.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

std::size_t Size(std::int64_t n) { return static_cast<std::size_t>(n); }

float ExpOf(float x) {
  Exp(&x, &x, 1);
  return x;
}

// a . b as a chain, in panels as engine/gemm.h has them.
float Chain(const std::vector<float>& a, const std::vector<float>& b) {
  float sum = 0;
  for (std::size_t panel = 0; panel < a.size(); panel += kGemmInnerPanel) {
    float chain = 0;
    for (std::size_t i = panel; i < a.size() && i < panel + kGemmInnerPanel; ++i) {
      chain = std::fma(a[i], b[i], chain);
    }
    sum = panel == 0 ? chain : sum + chain;
  }
  return sum;
}

}  // namespace

RefGatedHead::RefGatedHead(const LinearLayer& layer, std::int64_t kv_head)
    : layer_(layer),
      kv_head_(kv_head),
      c_(layer.map->feature_dim()),
      columns_(layer.shape.value_dim + 1),
      totals_(Size(c_ * columns_), 0.0) {}

std::vector<std::vector<float>> RefGatedHead::Weights(std::int64_t from) const {
  std::vector<std::vector<float>> weights(Size(from + 2), std::vector<float>(Size(c_)));
  for (std::size_t a = 0; a < Size(c_); ++a) {
    float sum = 0;
    for (std::int64_t j = from; j >= 0; --j) {
      weights[Size(j)][a] = ExpOf(sum);
      sum += tail_[Size(j)].gates[a];
    }
    weights.back()[a] = ExpOf(sum);
  }
  return weights;
}

std::vector<float> RefGatedHead::Read(const std::vector<float>& features) const {
  std::vector<float> result(Size(columns_), 0.0F);
  for (std::size_t j = 0; any_sealed_ && j < result.size(); ++j) {
    std::vector<float> column;
    for (std::size_t a = 0; a < Size(c_); ++a) {
      column.push_back(static_cast<float>(totals_[a * result.size() + j]));
    }
    result[j] = Chain(features, column);
  }
  return result;
}

void RefGatedHead::AddRows(const std::vector<float>& scores, std::vector<float>& result) const {
  std::vector<float> rows(result.size(), 0.0F);
  for (std::size_t j = 0; j < scores.size(); ++j) {
    for (std::size_t d = 0; d < rows.size(); ++d) {
      rows[d] = std::fma(scores[j], tail_[j].columns[d], rows[d]);
    }
  }
  for (std::size_t d = 0; d < rows.size(); ++d) result[d] += rows[d];
}

// Of the newest token, which is in the tail already.
std::vector<float> RefGatedHead::Update(const Token& token, const float* value, float rate) const {
  const std::int64_t i = std::ssize(tail_) - 1;
  const std::vector<std::vector<float>> weights = Weights(i);
  std::vector<float> reader = token.features;
  for (std::size_t a = 0; a < reader.size(); ++a) reader[a] *= weights.back()[a];
  std::vector<float> read = Read(reader);
  std::vector<float> scores;
  for (std::size_t j = 0; j < Size(i); ++j) {
    scores.push_back(Chain(token.features, tail_[j].features) * weights[j][0]);
  }
  AddRows(scores, read);
  std::vector<float> update(value, value + layer_.shape.value_dim);
  for (std::size_t d = 0; d < update.size(); ++d) update[d] = rate * (update[d] - read[d]);
  return update;
}

void RefGatedHead::Append(const float* key, const float* value, const float* log_decays, float rate,
                          bool masked) {
  if (std::ssize(tail_) == kBlockTokens) Seal();
  const UpdateRule& rule = layer_.config.update;
  Token token;
  token.masked = masked;
  token.features.resize(Size(c_));
  Scratch scratch;
  layer_.map->MapKeys({key, layer_.shape.key_dim, 1, kv_head_, &position_},
                      {token.features.data(), c_, nullptr}, scratch);
  if (masked) token.features.assign(Size(c_), 0.0F);
  const bool per_feature = DecaysPerFeature(layer_);
  for (std::int64_t a = 0; a < c_; ++a) {
    float gate = 0;
    if (!masked && rule.decay == UpdateRule::Decay::kConstant) {
      gate = rule.log_decays[Size(per_feature ? kv_head_ * c_ + a : kv_head_)];
    } else if (!masked && rule.decay != UpdateRule::Decay::kNone) {
      gate = log_decays[per_feature ? a : 0];
    }
    token.gates.push_back(gate);
  }
  token.columns.assign(value, value + layer_.shape.value_dim);
  if (masked) token.columns.assign(Size(layer_.shape.value_dim), 0.0F);
  token.columns.push_back(rule.delta ? 0.0F : 1.0F);
  tail_.push_back(token);
  if (rule.delta) {
    std::vector<float> update = Update(token, token.columns.data(), masked ? 0.0F : rate);
    update.push_back(0.0F);
    tail_.back().columns = update;
  }
  ++position_;
}

void RefGatedHead::Seal() {
  const std::vector<std::vector<float>> weights = Weights(kBlockTokens - 1);
  for (std::size_t a = 0; a < Size(c_); ++a) {
    double log = 0;
    for (const Token& token : tail_) log += static_cast<double>(token.gates[a]);
    const double factor = std::exp(log);
    for (std::size_t d = 0; d < Size(columns_); ++d) {
      float sum = 0;
      for (std::size_t j = 0; j < tail_.size(); ++j) {
        sum = std::fma(tail_[j].features[a] * weights[j][a], tail_[j].columns[d], sum);
      }
      double& total = totals_[a * Size(columns_) + d];
      total = total * factor + static_cast<double>(sum);
    }
  }
  for (const Token& token : tail_) any_sealed_ = any_sealed_ || !token.masked;
  tail_.clear();
}

RefGatedHead::Answer RefGatedHead::Query(const float* query, std::int64_t query_head) const {
  const UpdateRule& rule = layer_.config.update;
  std::vector<float> features(Size(c_));
  Scratch scratch;
  layer_.map->MapQueries({query, layer_.shape.key_dim, 1, query_head, &position_},
                         {features.data(), c_, nullptr}, scratch);
  const std::int64_t newest = std::ssize(tail_) - 1;
  const std::int64_t from = rule.read_first ? newest - 1 : newest;
  const std::vector<std::vector<float>> weights = Weights(from);
  const bool by_feature = DecaysPerFeature(layer_) || !rule.bonus.empty();
  std::vector<float> scores;
  for (std::int64_t j = 0; j <= newest; ++j) {
    std::vector<float> key = tail_[Size(j)].features;
    float weight = 1;
    if (j > from && rule.bonus.empty()) {
      weight = 0;
    } else if (j > from) {
      for (std::int64_t a = 0; a < c_; ++a) {
        key[Size(a)] = rule.bonus[Size(kv_head_ * c_ + a)] * key[Size(a)];
      }
    } else if (by_feature) {
      for (std::size_t a = 0; a < key.size(); ++a) key[a] *= weights[Size(j)][a];
    } else {
      weight = weights[Size(j)][0];
    }
    const float score = Chain(features, key) * weight;
    scores.push_back(tail_[Size(j)].masked ? 0.0F : score);
  }
  for (std::size_t a = 0; a < features.size(); ++a) features[a] *= weights.back()[a];
  std::vector<float> result = Read(features);
  AddRows(scores, result);
  Answer answer;
  answer.denominator = result.back();
  result.pop_back();
  answer.numerator = std::move(result);
  return answer;
}

}  // namespace attnd::engine
