// How far values spread about their mean, the unit of stated errors: the root mean square of
// ||v - mean v||, from sums in f64 in the order of rows. Not synchronised; cannot fail but for
// std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_VALUE_MOMENTS_H_
#define ATTND_ENGINE_KDE_VALUE_MOMENTS_H_

#include <cstdint>
#include <vector>

#include "engine/block.h"

namespace attnd::engine {

class ValueMoments {
 public:
  explicit ValueMoments(std::int64_t value_dim) : sums_(static_cast<std::size_t>(value_dim)) {}

  static std::int64_t Bytes(std::int64_t value_dim) {
    return static_cast<std::int64_t>(sizeof(ValueMoments)) +
           value_dim * static_cast<std::int64_t>(sizeof(double));
  }

  // The valid ones of up to 64 rows of values, `stride` floats apart.
  void Add(const float* rows, std::int64_t stride, RowMask valid);

  // 0 where there is no value.
  double Spread() const;

 private:
  std::int64_t count_ = 0;
  std::vector<double> sums_;
  double squares_ = 0.0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_VALUE_MOMENTS_H_
