#include "client/demo/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace attnd::demo {
namespace {

double EluPlusOne(double x) { return x > 0 ? x + 1 : std::exp(x); }

std::vector<double> Weights(Kind kind, const Dataset& data, double scale, const float* query,
                            std::int64_t head, std::int64_t visible) {
  const std::int64_t dim = data.keys.dim;
  std::vector<double> weights;
  for (std::int64_t token = 0; token < visible; ++token) {
    const float* key = data.keys.row(token) + head * dim;
    double sum = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      const double q = scale * double{query[head * dim + i]};
      sum +=
          kind == Kind::kSoftmax ? q * double{key[i]} : EluPlusOne(q) * EluPlusOne(double{key[i]});
    }
    weights.push_back(sum);
  }
  if (kind == Kind::kSoftmax) {
    const double largest = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) weight = std::exp(weight - largest);
  }
  return weights;
}

}  // namespace

std::vector<double> Reference(Kind kind, const Dataset& data, double scale, const float* query,
                              std::int64_t visible) {
  const std::int64_t value_dim = data.values.dim;
  std::vector<double> out(static_cast<std::size_t>(data.values.row_size()), 0.0);
  for (std::int64_t head = 0; head < data.keys.heads; ++head) {
    const std::vector<double> weights = Weights(kind, data, scale, query, head, visible);
    double* row = out.data() + head * value_dim;
    double total = 0;
    for (std::int64_t token = 0; token < visible; ++token) {
      const double weight = weights[static_cast<std::size_t>(token)];
      const float* value = data.values.row(token) + head * value_dim;
      total += weight;
      for (std::int64_t i = 0; i < value_dim; ++i) row[i] += weight * double{value[i]};
    }
    for (std::int64_t i = 0; i < value_dim; ++i) row[i] /= total;
  }
  return out;
}

}  // namespace attnd::demo
