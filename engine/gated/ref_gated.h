// The slow and obvious form of the gated engine: one head, one token at a time, plain scalar loops.
// It is the definition in decays.h, delta.h and gated_plan.h written out, so the engine is held to
// its bits.
//
// Not thread-safe. Cannot fail; overflow shows as infinities and NaNs.
#ifndef ATTND_ENGINE_GATED_REF_GATED_H_
#define ATTND_ENGINE_GATED_REF_GATED_H_

#include <cstdint>
#include <vector>

#include "engine/linear/linear_layer.h"

namespace attnd::engine {

class RefGatedHead {
 public:
  // The layer, whose rule and map are used, must outlive this.
  RefGatedHead(const LinearLayer& layer, std::int64_t kv_head);

  // key [d_k], value [d_v]; `log_decays`: one number or c, where they come with tokens; `rate`:
  // with a delta rule.
  void Append(const float* key, const float* value, const float* log_decays, float rate,
              bool masked);

  struct Answer {
    std::vector<float> numerator;  // [d_v]
    float denominator = 0;
  };
  // The answer over all tokens so far, before the guard. query [d_k], already scaled.
  Answer Query(const float* query, std::int64_t query_head) const;

 private:
  struct Token {
    std::vector<float> features;
    std::vector<float> gates;    // c log-decays
    std::vector<float> columns;  // value, then 1; or update, then 0
    bool masked = false;
  };
  // By tail row seen from row `from`: c weights; the last is that of the sealed part.
  std::vector<std::vector<float>> Weights(std::int64_t from) const;
  // features [S | Z], then what the tail's first `rows` rows add with these scores.
  std::vector<float> Read(const std::vector<float>& features) const;
  void AddRows(const std::vector<float>& scores, std::vector<float>& result) const;
  std::vector<float> Update(const Token& token, const float* value, float rate) const;
  void Seal();

  const LinearLayer& layer_;
  const std::int64_t kv_head_;
  const std::int64_t c_;
  const std::int64_t columns_;  // d_v + 1
  std::int64_t position_ = 0;
  bool any_sealed_ = false;
  std::vector<double> totals_;  // [c, d_v + 1]
  std::vector<Token> tail_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_GATED_REF_GATED_H_
