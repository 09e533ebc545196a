// The slow and obvious form of Efficient Attention: one head, one token at a time, plain scalar
// loops. It is the definition in column_fold.h and efficient_plan.h written out, so the engine is
// held to its bits.
//
// Arithmetic: exponentials of single numbers by Exp() (simd/maps.h); block sums and answers in f32
// with fused multiply-adds; totals in f64. Not thread-safe. Cannot fail; overflow shows as
// infinities and NaNs.
#ifndef ATTND_ENGINE_EFFICIENT_REF_EFFICIENT_H_
#define ATTND_ENGINE_EFFICIENT_REF_EFFICIENT_H_

#include <cstdint>
#include <vector>

namespace attnd::engine {

class RefEfficientHead {
 public:
  RefEfficientHead(std::int64_t key_dim, std::int64_t value_dim);

  // key [d_k], value [d_v]; a masked token takes a place in its block and adds nothing.
  void Append(const float* key, const float* value, bool masked);

  // N and D of the answer over all tokens so far, [d_v + 1]; empty if none of them is unmasked.
  // query [d_k], already scaled.
  std::vector<float> Query(const float* query) const;

 private:
  struct Token {
    std::vector<float> mantissas;
    std::vector<std::int32_t> steps;
    std::vector<float> values;  // and 1
  };

  // The largest steps of a column among the totals and the open block.
  std::int32_t LargestSteps(std::size_t column) const;
  void Seal();

  std::size_t key_dim_;
  std::size_t value_dim_;
  std::vector<double> totals_;       // [d_k, d_v + 1]
  std::vector<std::int32_t> steps_;  // [d_k], of the totals
  std::vector<Token> tail_;          // the unmasked tokens of the open block
  std::int64_t open_rows_ = 0;       // with the masked ones
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EFFICIENT_REF_EFFICIENT_H_
