// Attention in f64 by its definition, one query at a time, O(tokens) each.
//
// Independent of the engines on purpose: what it agrees with is right for two reasons. Immutable
// after construction.
#ifndef ATTND_CLIENT_DEMO_REFERENCE_H_
#define ATTND_CLIENT_DEMO_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "client/demo/dataset.h"

namespace attnd::demo {

enum class Kind {
  kSoftmax,  // softmax(scale q k^T) v
  kLinear,   // phi(q) phi(K)^T v / phi(q) phi(K)^T 1, phi(x) = x > 0 ? x + 1 : exp(x)
};

class Reference {
 public:
  // Borrows `data`. `scale` is a factor on queries.
  Reference(Kind kind, const Dataset& data, double scale);

  // The outputs [heads, value_dim] of one query row [heads, dim] over the first `visible` tokens,
  // at least 1.
  std::vector<double> Answer(const float* query, std::int64_t visible) const;

 private:
  double Feature(double x) const;
  std::vector<double> Weights(const float* query, std::int64_t head, std::int64_t visible) const;

  const Kind kind_;
  const Dataset& data_;
  const double scale_;
  // [heads, tokens, dim]: the keys, or phi of them.
  std::vector<double> features_;
};

}  // namespace attnd::demo

#endif  // ATTND_CLIENT_DEMO_REFERENCE_H_
