#include "tests/bench/distillation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <vector>

namespace attnd::bench {
namespace {

constexpr int kSteps = 200;
constexpr std::size_t kQueries = 64;  // of a step
constexpr std::size_t kKeys = 512;
constexpr double kRate = 0.02;  // falls to 0 linearly

using Numbers = std::vector<double>;

// W of one head, [2 d, d].
class Weights {
 public:
  explicit Weights(std::size_t d)
      : d_(d), w_(2 * d * d), gradient_(w_.size()), first_(w_.size()), second_(w_.size()) {
    for (std::size_t i = 0; i < d; ++i) {
      w_[i * d + i] = 1;
      w_[(d + i) * d + i] = -1;
    }
  }

  std::size_t features() const { return 2 * d_; }
  const Numbers& numbers() const { return w_; }

  // exp(W x) of rows [n, d]: [n, features].
  Numbers Map(const Numbers& rows) const {
    Numbers mapped;
    for (std::size_t row = 0; row < rows.size(); row += d_) {
      for (std::size_t f = 0; f < features(); ++f) {
        double sum = 0;
        for (std::size_t i = 0; i < d_; ++i) sum += w_[f * d_ + i] * rows[row + i];
        mapped.push_back(std::exp(sum));
      }
    }
    return mapped;
  }

  // `slopes`: of the loss, by what Map(rows) gave.
  void AddSlopes(const Numbers& rows, const Numbers& mapped, const Numbers& slopes) {
    std::size_t at = 0;
    for (std::size_t row = 0; row < rows.size(); row += d_) {
      for (std::size_t f = 0; f < features(); ++f, ++at) {
        const double slope = slopes[at] * mapped[at];
        for (std::size_t i = 0; i < d_; ++i) gradient_[f * d_ + i] += slope * rows[row + i];
      }
    }
  }

  // Adam's step number `step` from 1, with its usual constants; the gradient begins anew.
  void Step(int step) {
    const double rate = kRate * (1 - (step - 1.0) / kSteps);
    for (std::size_t i = 0; i < w_.size(); ++i) {
      first_[i] += 0.1 * (gradient_[i] - first_[i]);
      second_[i] += 0.001 * (gradient_[i] * gradient_[i] - second_[i]);
      const double mean = first_[i] / (1 - std::pow(0.9, step));
      const double square = second_[i] / (1 - std::pow(0.999, step));
      w_[i] -= rate * mean / (std::sqrt(square) + 1e-8);
      gradient_[i] = 0;
    }
  }

 private:
  std::size_t d_;
  Numbers w_;
  Numbers gradient_;
  Numbers first_;
  Numbers second_;
};

// to += factor * x.
void AddScaled(double factor, const double* x, std::size_t n, double* to) {
  for (std::size_t i = 0; i < n; ++i) to[i] += factor * x[i];
}

double Dot(const double* x, const double* y, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

// The loss's gradient for queries [n, d] over keys [m, d], its mean over queries.
void AddGradients(const Numbers& queries, const Numbers& keys, std::size_t d, Weights& of_queries,
                  Weights& of_keys) {
  const std::size_t c = of_keys.features();
  const std::size_t n = queries.size() / d;
  const std::size_t m = keys.size() / d;
  const Numbers phi_q = of_queries.Map(queries);
  const Numbers phi_k = of_keys.Map(keys);
  Numbers slopes_q(phi_q.size());
  Numbers slopes_k(phi_k.size());
  Numbers softmax(m);
  Numbers kernel(m);
  for (std::size_t i = 0; i < n; ++i) {
    double largest = std::numeric_limits<double>::lowest();
    double sum = 0;
    for (std::size_t j = 0; j < m; ++j) {
      softmax[j] = Dot(queries.data() + i * d, keys.data() + j * d, d);
      largest = std::max(largest, softmax[j]);
      kernel[j] = Dot(phi_q.data() + i * c, phi_k.data() + j * c, c);
      sum += kernel[j];
    }
    double exponentials = 0;
    for (double& score : softmax) {
      score = std::exp(score - largest);
      exponentials += score;
    }
    for (std::size_t j = 0; j < m; ++j) {
      const double slope =
          (1 / sum - softmax[j] / exponentials / kernel[j]) / static_cast<double>(n);
      AddScaled(slope, phi_k.data() + j * c, c, slopes_q.data() + i * c);
      AddScaled(slope, phi_q.data() + i * c, c, slopes_k.data() + j * c);
    }
  }
  of_queries.AddSlopes(queries, phi_q, slopes_q);
  of_keys.AddSlopes(keys, phi_k, slopes_k);
}

// `count` rows of one head of [tokens, heads, d] for step number `step`: every so many tokens, from
// another one on each time.
Numbers SomeRows(std::span<const float> numbers, std::size_t tokens, std::size_t d,
                 std::size_t head, std::size_t count, int step) {
  const std::size_t row = numbers.size() / tokens;
  const std::size_t stride = std::max<std::size_t>(1, tokens / count);
  Numbers rows;
  for (std::size_t i = 0; i < std::min(count, tokens); ++i) {
    const std::size_t token = (i * stride + static_cast<std::size_t>(step)) % tokens;
    const float* const first = numbers.data() + token * row + head * d;
    rows.insert(rows.end(), first, first + d);
  }
  return rows;
}

void Append(const Numbers& numbers, std::vector<float>& to) {
  for (const double number : numbers) to.push_back(static_cast<float>(number));
}

}  // namespace

std::shared_ptr<const engine::MapWeights> DistilSoftmax(const Sample& sample) {
  const engine::LayerShape& shape = sample.shape;
  const auto d = static_cast<std::size_t>(shape.key_dim);
  const auto tokens = static_cast<std::size_t>(sample.tokens);
  const auto group = static_cast<std::size_t>(shape.group_size());
  std::vector<Weights> of_keys(static_cast<std::size_t>(shape.kv_heads), Weights(d));
  std::vector<Weights> of_queries(static_cast<std::size_t>(shape.query_heads), Weights(d));
  for (std::size_t head = 0; head < of_keys.size(); ++head) {
    for (int step = 1; step <= kSteps; ++step) {
      const Numbers keys = SomeRows(sample.keys, tokens, d, head, kKeys, step);
      for (std::size_t q = head * group; q < (head + 1) * group; ++q) {
        AddGradients(SomeRows(sample.queries, tokens, d, q, kQueries, step), keys, d, of_queries[q],
                     of_keys[head]);
        of_queries[q].Step(step);
      }
      of_keys[head].Step(step);
    }
  }

  std::vector<float> numbers;
  for (const Weights& weights : of_keys) Append(weights.numbers(), numbers);
  for (const Weights& weights : of_queries) Append(weights.numbers(), numbers);
  engine::MapWeightsBuilder builder({engine::MapActivation::kExp, shape.kv_heads, shape.query_heads,
                                     shape.key_dim, 2 * shape.key_dim, false, false});
  if (!builder.Add(numbers.data(), std::ssize(numbers)).ok()) std::abort();
  return builder.Finish();
}

}  // namespace attnd::bench
