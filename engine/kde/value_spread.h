// How far a layer's values lie from their mean: the unit of stated errors, kept while tokens come.
//
// f64 sums in the order of tokens, so a function of the tokens. Copyable; one thread at a time.
#ifndef ATTND_ENGINE_KDE_VALUE_SPREAD_H_
#define ATTND_ENGINE_KDE_VALUE_SPREAD_H_

#include <cstdint>
#include <vector>

#include "engine/block.h"

namespace attnd::engine {

class ValueSpread {
 public:
  explicit ValueSpread(const LayerShape& shape);

  // Counts the unmasked tokens of a complete block.
  void Add(const Block& block);

  // Root mean square of ||v - mean v|| over the tokens counted; 0 where there are none.
  double Of(std::int64_t kv_head) const;

  static std::int64_t Bytes(const LayerShape& shape);

 private:
  std::int64_t heads_;
  std::int64_t value_dim_;
  std::int64_t tokens_ = 0;
  // [kv_heads][2][d_v]: sums, and sums of squares; one number for all squares would be a chain of
  // additions, four times as slow.
  std::vector<double> sums_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_VALUE_SPREAD_H_
