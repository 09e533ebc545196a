// Attention in f64 by its definition, one query at a time, O(tokens) each.
//
// Independent of the engines on purpose: what it agrees with is right for two reasons. Pure
// functions.
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

// The outputs [heads, value_dim] of one query row [heads, dim] over the first `visible` tokens, at
// least 1.
std::vector<double> Reference(Kind kind, const Dataset& data, double scale, const float* query,
                              std::int64_t visible);

}  // namespace attnd::demo

#endif  // ATTND_CLIENT_DEMO_REFERENCE_H_
