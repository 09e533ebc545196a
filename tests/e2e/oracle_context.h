// The tokens of a test as the oracle takes them.
#ifndef ATTND_TESTS_E2E_ORACLE_CONTEXT_H_
#define ATTND_TESTS_E2E_ORACLE_CONTEXT_H_

#include "tests/e2e/harness.h"
#include "tests/oracle/attention_oracle.h"

namespace attnd::e2e {

// Borrows the tokens.
inline oracle::Context ContextOf(const Tokens& tokens, double scale) {
  const Shape& shape = tokens.shape;
  return {shape.kv_heads,
          shape.query_heads,
          shape.key_dim,
          shape.value_dim,
          scale,
          tokens.count,
          tokens.keys.data(),
          tokens.values.data(),
          tokens.mask.empty() ? nullptr : tokens.mask.data()};
}

}  // namespace attnd::e2e

#endif  // ATTND_TESTS_E2E_ORACLE_CONTEXT_H_
