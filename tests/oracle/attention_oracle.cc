#include "tests/oracle/attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace attnd::oracle {
namespace {

// Calls use(token, key row, value row) for every token that a query sees.
template <typename Use>
void ForVisibleTokens(const Context& c, std::int64_t visible, std::int64_t query_head, Use use) {
  const std::int64_t kv_head = query_head / (c.query_heads / c.kv_heads);
  for (std::int64_t t = 0; t < std::min(visible, c.tokens); ++t) {
    if (c.mask != nullptr && c.mask[t] == 0) continue;
    use(t, c.keys + (t * c.kv_heads + kv_head) * c.key_dim,
        c.values + (t * c.kv_heads + kv_head) * c.value_dim);
  }
}

const float* QueryRow(const Context& c, const Queries& q, std::int64_t query, std::int64_t head) {
  return q.rows + (query * c.query_heads + head) * c.key_dim;
}

double Score(const Context& c, const float* query, const float* key) {
  double dot = 0;
  for (std::int64_t i = 0; i < c.key_dim; ++i) {
    dot += c.scale * static_cast<double>(query[i]) * static_cast<double>(key[i]);
  }
  return dot;
}

double Feature(FeatureMap map, double epsilon, double x) {
  switch (map) {
    case FeatureMap::kIdentity:
      return x;
    case FeatureMap::kEluPlusOne:
      return x > 0 ? x + 1 : std::exp(x);
    case FeatureMap::kRelu:
      return std::max(x, 0.0) + epsilon;
    case FeatureMap::kSquaredRelu:
      return std::max(x, 0.0) * std::max(x, 0.0);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

Answers EmptyAnswers(const Context& c, const Queries& q) {
  const std::size_t rows = q.visible.size() * static_cast<std::size_t>(c.query_heads);
  const std::size_t numbers = rows * static_cast<std::size_t>(c.value_dim);
  Answers a;
  a.outputs.assign(numbers, 0.0);
  a.log_normalizers.assign(rows, -std::numeric_limits<double>::infinity());
  a.numerators.assign(numbers, 0.0);
  a.denominators.assign(rows, 0.0);
  a.empty.assign(rows, 1);
  return a;
}

}  // namespace

std::vector<std::int64_t> AllVisible(std::int64_t count, std::int64_t tokens) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(count), tokens);
}

std::vector<std::int64_t> CausallyVisible(std::int64_t count, std::int64_t first) {
  std::vector<std::int64_t> visible;
  for (std::int64_t i = 0; i < count; ++i) visible.push_back(first + i);
  return visible;
}

std::vector<double> SoftmaxWeights(const Context& c, const Queries& q, std::int64_t query,
                                   std::int64_t query_head) {
  const std::int64_t visible = q.visible[static_cast<std::size_t>(query)];
  const float* row = QueryRow(c, q, query, query_head);
  std::vector<double> weights(static_cast<std::size_t>(c.tokens), 0.0);
  double max = -std::numeric_limits<double>::infinity();
  ForVisibleTokens(c, visible, query_head, [&](std::int64_t, const float* key, const float*) {
    max = std::max(max, Score(c, row, key));
  });
  double sum = 0;
  ForVisibleTokens(c, visible, query_head, [&](std::int64_t t, const float* key, const float*) {
    const double weight = std::exp(Score(c, row, key) - max);
    weights[static_cast<std::size_t>(t)] = weight;
    sum += weight;
  });
  if (sum > 0) {
    for (double& weight : weights) weight /= sum;
  }
  return weights;
}

Answers Softmax(const Context& c, const Queries& q) {
  Answers a = EmptyAnswers(c, q);
  std::vector<double> scores(static_cast<std::size_t>(c.tokens));
  for (std::size_t i = 0; i < q.visible.size(); ++i) {
    for (std::int64_t h = 0; h < c.query_heads; ++h) {
      const std::size_t r =
          i * static_cast<std::size_t>(c.query_heads) + static_cast<std::size_t>(h);
      const float* row = QueryRow(c, q, static_cast<std::int64_t>(i), h);
      double max = -std::numeric_limits<double>::infinity();
      ForVisibleTokens(c, q.visible[i], h, [&](std::int64_t t, const float* key, const float*) {
        scores[static_cast<std::size_t>(t)] = Score(c, row, key);
        max = std::max(max, scores[static_cast<std::size_t>(t)]);
        a.empty[r] = 0;
      });
      if (a.empty[r] != 0) continue;
      double sum = 0;
      double* out = a.outputs.data() + r * static_cast<std::size_t>(c.value_dim);
      ForVisibleTokens(c, q.visible[i], h, [&](std::int64_t t, const float*, const float* value) {
        const double weight = std::exp(scores[static_cast<std::size_t>(t)] - max);
        sum += weight;
        for (std::int64_t j = 0; j < c.value_dim; ++j) {
          out[j] += weight * static_cast<double>(value[j]);
        }
      });
      for (std::int64_t j = 0; j < c.value_dim; ++j) out[j] /= sum;
      a.log_normalizers[r] = max + std::log(sum);
    }
  }
  return a;
}

Answers BySimilarity(const Context& c, const Queries& q, const Similarity& similarity,
                     bool normalized) {
  Answers a = EmptyAnswers(c, q);
  for (std::size_t i = 0; i < q.visible.size(); ++i) {
    const std::int64_t position = q.positions.empty() ? 0 : q.positions[i];
    for (std::int64_t h = 0; h < c.query_heads; ++h) {
      const std::size_t r =
          i * static_cast<std::size_t>(c.query_heads) + static_cast<std::size_t>(h);
      const float* row = QueryRow(c, q, static_cast<std::int64_t>(i), h);
      std::vector<double> query;
      for (std::int64_t j = 0; j < c.key_dim; ++j) {
        query.push_back(c.scale * static_cast<double>(row[j]));
      }
      double* numerator = a.numerators.data() + r * static_cast<std::size_t>(c.value_dim);
      const auto add = [&](std::int64_t t, const float* key, const float* value) {
        const double weight = similarity(query, {key, key + c.key_dim}, position, t);
        a.denominators[r] += weight;
        a.empty[r] = 0;
        for (std::int64_t j = 0; j < c.value_dim; ++j) {
          numerator[j] += weight * static_cast<double>(value[j]);
        }
      };
      ForVisibleTokens(c, q.visible[i], h, add);
      double* out = a.outputs.data() + r * static_cast<std::size_t>(c.value_dim);
      for (std::int64_t j = 0; j < c.value_dim; ++j) {
        if (!normalized) {
          out[j] = numerator[j];
        } else if (a.denominators[r] != 0) {
          out[j] = numerator[j] / a.denominators[r];
        }
      }
    }
  }
  return a;
}

Answers Linear(const Context& c, const Queries& q, FeatureMap map, double epsilon,
               bool normalized) {
  const auto similarity = [map, epsilon](const std::vector<double>& query,
                                         const std::vector<double>& key, std::int64_t,
                                         std::int64_t) {
    double sum = 0;
    for (std::size_t j = 0; j < query.size(); ++j) {
      sum += Feature(map, epsilon, query[j]) * Feature(map, epsilon, key[j]);
    }
    return sum;
  };
  return BySimilarity(c, q, similarity, normalized);
}

Answers Efficient(const Context& c, const Queries& q) {
  Answers a = EmptyAnswers(c, q);
  const auto d = static_cast<std::size_t>(c.key_dim);
  for (std::size_t i = 0; i < q.visible.size(); ++i) {
    for (std::int64_t h = 0; h < c.query_heads; ++h) {
      const std::size_t r =
          i * static_cast<std::size_t>(c.query_heads) + static_cast<std::size_t>(h);
      const float* row = QueryRow(c, q, static_cast<std::int64_t>(i), h);
      std::vector<double> query(d);
      for (std::size_t j = 0; j < d; ++j) query[j] = c.scale * static_cast<double>(row[j]);
      const double query_max = *std::max_element(query.begin(), query.end());
      double query_sum = 0;
      for (double& x : query) query_sum += x = std::exp(x - query_max);

      std::vector<double> key_max(d, -std::numeric_limits<double>::infinity());
      ForVisibleTokens(c, q.visible[i], h, [&](std::int64_t, const float* key, const float*) {
        for (std::size_t j = 0; j < d; ++j) {
          key_max[j] = std::max(key_max[j], static_cast<double>(key[j]));
        }
        a.empty[r] = 0;
      });
      std::vector<double> key_sum(d, 0.0);
      ForVisibleTokens(c, q.visible[i], h, [&](std::int64_t, const float* key, const float*) {
        for (std::size_t j = 0; j < d; ++j) {
          key_sum[j] += std::exp(static_cast<double>(key[j]) - key_max[j]);
        }
      });
      double* out = a.outputs.data() + r * static_cast<std::size_t>(c.value_dim);
      ForVisibleTokens(c, q.visible[i], h, [&](std::int64_t, const float* key, const float* value) {
        double weight = 0;
        for (std::size_t j = 0; j < d; ++j) {
          weight += query[j] / query_sum * std::exp(static_cast<double>(key[j]) - key_max[j]) /
                    key_sum[j];
        }
        for (std::int64_t j = 0; j < c.value_dim; ++j) {
          out[j] += weight * static_cast<double>(value[j]);
        }
      });
    }
  }
  return a;
}

}  // namespace attnd::oracle
