// The slow and obvious form of linear attention: one head, one token at a time, plain scalar loops.
// It is the definition in fold.h and attend_plan.h written out, so the engine is held to its bits.
//
// Arithmetic: features from the FeatureMap; block sums and answers in f32 with fused multiply-adds;
// totals in f64. Not thread-safe. Cannot fail; overflow shows as infinities and NaNs.
#ifndef ATTND_ENGINE_LINEAR_REF_LINEAR_H_
#define ATTND_ENGINE_LINEAR_REF_LINEAR_H_

#include <cstdint>
#include <vector>

#include "engine/linear/feature_map.h"
#include "engine/linear/row_exponents.h"

namespace attnd::engine {

class RefLinearHead {
 public:
  // The map must outlive this.
  RefLinearHead(const FeatureMap& map, std::int64_t key_dim, std::int64_t value_dim,
                std::int64_t kv_head = 0);

  // key [d_k], value [d_v]; a masked token takes a place in its block and adds nothing.
  void Append(const float* key, const float* value, bool masked);

  struct Answer {
    std::vector<float> numerator;  // [d_v]
    float denominator = 0;
    std::int32_t exponent = 0;  // numerator and denominator are times 2 to this power
    bool empty = true;          // no unmasked token
  };
  // The answer over all tokens so far, before the guard, to a query of `query_head` that stands at
  // `position`. query [d_k], already scaled.
  Answer Query(const float* query, std::int64_t query_head = 0, std::int64_t position = 0) const;

 private:
  struct Token {
    std::vector<float> features;
    std::vector<float> columns;  // value, then 1
    std::int32_t exponent = kNoExponent;
    bool masked = false;
  };

  void Seal();

  const FeatureMap& map_;
  std::int64_t key_dim_;
  std::int64_t value_dim_;
  std::int64_t kv_head_;
  std::int64_t position_ = 0;
  std::vector<double> totals_;  // [c, d_v + 1], times 2^totals_exponent_
  std::int32_t totals_exponent_ = kNoExponent;
  std::vector<Token> tail_;  // the open block
  bool any_sealed_ = false;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_REF_LINEAR_H_
