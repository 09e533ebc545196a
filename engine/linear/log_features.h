// Features that are exponentials, with the power of two that each row takes.
//
// Pure functions; any thread.
#ifndef ATTND_ENGINE_LINEAR_LOG_FEATURES_H_
#define ATTND_ENGINE_LINEAR_LOG_FEATURES_H_

#include <cstdint>

namespace attnd::engine {

// The integer e and the factor f = exp(log_factor) / 2^e in (1/2, 1] of a row whose features all
// have that factor. The factor is NaN where e is out of range.
struct RowFactor {
  std::int32_t exponent = 0;
  float log_factor = 0;  // ln f
};
RowFactor SplitFactor(double log_factor);

// features[j] = exp(features[j] + log_factor) / 2^e, where e is returned and such that the largest
// is in (1/2, 1]. All become NaN where a number or e is out of range.
std::int32_t ExpFeatures(double log_factor, float* features, std::int64_t n);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_LOG_FEATURES_H_
