// How far values spread about their mean, the unit of stated errors: the root mean square of
// ||v - mean v||, from sums in f64 in the order of rows. Not synchronised; cannot fail but for
// std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_VALUE_SPREAD_H_
#define ATTND_ENGINE_KDE_VALUE_SPREAD_H_

#include <cstdint>
#include <vector>

#include "engine/block.h"

namespace attnd::engine {

class ValueSpread {
 public:
  explicit ValueSpread(std::int64_t value_dim) : sums_(static_cast<std::size_t>(value_dim)) {}

  static std::int64_t Bytes(std::int64_t value_dim) {
    return static_cast<std::int64_t>(sizeof(ValueSpread)) +
           value_dim * static_cast<std::int64_t>(sizeof(double));
  }

  std::int64_t value_dim() const { return static_cast<std::int64_t>(sums_.size()); }

  // The valid ones of up to 64 rows of values, `stride` floats apart.
  void Add(const float* rows, std::int64_t stride, RowMask valid);

  // 0 where there is no value.
  double Spread() const;

 private:
  std::int64_t count_ = 0;
  std::vector<double> sums_;
  double squares_ = 0.0;
};

// Adds a complete block's values to the spreads of its heads, one for each.
void AddValues(const Block& block, std::vector<ValueSpread>& spreads);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_VALUE_SPREAD_H_
