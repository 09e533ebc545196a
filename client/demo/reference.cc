#include "client/demo/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace attnd::demo {

Reference::Reference(Kind kind, const Dataset& data, double scale)
    : kind_(kind), data_(data), scale_(scale) {
  for (std::int64_t head = 0; head < data.keys.heads; ++head) {
    for (std::int64_t token = 0; token < data.keys.rows; ++token) {
      const float* key = data.keys.row(token) + head * data.keys.dim;
      for (std::int64_t i = 0; i < data.keys.dim; ++i) features_.push_back(Feature(double{key[i]}));
    }
  }
}

double Reference::Feature(double x) const {
  if (kind_ == Kind::kSoftmax) return x;
  return x > 0 ? x + 1 : std::exp(x);
}

std::vector<double> Reference::Weights(const float* query, std::int64_t head,
                                       std::int64_t visible) const {
  const std::int64_t dim = data_.keys.dim;
  std::vector<double> q;
  for (std::int64_t i = 0; i < dim; ++i)
    q.push_back(Feature(scale_ * double{query[head * dim + i]}));

  std::vector<double> weights;
  const double* key = features_.data() + head * data_.keys.rows * dim;
  for (std::int64_t token = 0; token < visible; ++token, key += dim) {
    double sum = 0;
    for (std::int64_t i = 0; i < dim; ++i) sum += q[static_cast<std::size_t>(i)] * key[i];
    weights.push_back(sum);
  }
  if (kind_ == Kind::kSoftmax) {
    const double largest = *std::max_element(weights.begin(), weights.end());
    for (double& weight : weights) weight = std::exp(weight - largest);
  }
  return weights;
}

std::vector<double> Reference::Answer(const float* query, std::int64_t visible) const {
  const std::int64_t value_dim = data_.values.dim;
  std::vector<double> out(static_cast<std::size_t>(data_.values.row_size()), 0.0);
  for (std::int64_t head = 0; head < data_.keys.heads; ++head) {
    const std::vector<double> weights = Weights(query, head, visible);
    double* row = out.data() + head * value_dim;
    double total = 0;
    for (std::int64_t token = 0; token < visible; ++token) {
      const double weight = weights[static_cast<std::size_t>(token)];
      const float* value = data_.values.row(token) + head * value_dim;
      total += weight;
      for (std::int64_t i = 0; i < value_dim; ++i) row[i] += weight * double{value[i]};
    }
    for (std::int64_t i = 0; i < value_dim; ++i) row[i] /= total;
  }
  return out;
}

}  // namespace attnd::demo
