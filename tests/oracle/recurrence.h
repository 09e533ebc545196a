// Linear attention with decays and delta rules in f64, as the recurrence that the papers give, for
// tests to hold the gated engine against. Shares no code with it. Thread-safe (no state).
#ifndef ATTND_ORACLE_RECURRENCE_H_
#define ATTND_ORACLE_RECURRENCE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/oracle/attention_oracle.h"

namespace attnd::oracle {

// Per token and kv-head, for features k, value v: S <- diag(a) S + k u^T, Z <- a Z + k, where u =
// v, or with rates b: u = b (v - (diag(a) S)^T k). Masked tokens are left out altogether.
struct Recurrence {
  // The decay a (not its log) of feature `a` of a token and kv-head.
  std::function<double(std::int64_t token, std::int64_t kv_head, std::int64_t feature)> decay;
  std::function<double(std::int64_t token, std::int64_t kv_head)> rate;  // null: no delta rule
  // The newest token's query reads S before it, plus this times its own k v^T.
  bool read_first = false;
  std::function<double(std::int64_t kv_head, std::int64_t feature)> bonus;  // null: zeros
  std::function<std::vector<double>(const std::vector<double>&)> map;       // null: identity
  bool normalized = false;
};

// Queries as in attention_oracle.h; `visible` must not fall from one query to the next.
Answers Recur(const Context& context, const Queries& queries, const Recurrence& rule);

}  // namespace attnd::oracle

#endif  // ATTND_ORACLE_RECURRENCE_H_
