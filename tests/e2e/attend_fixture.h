// A server, 300 tokens and 20 queries of one small layer, as the tests of Attend ask it.
#ifndef ATTND_TESTS_E2E_ATTEND_FIXTURE_H_
#define ATTND_TESTS_E2E_ATTEND_FIXTURE_H_

#include <vector>

#include "gtest/gtest.h"
#include "tests/e2e/harness.h"

namespace attnd::e2e {

class Attend : public ::testing::Test {
 protected:
  static constexpr Shape kShape = {.kv_heads = 2, .query_heads = 6, .key_dim = 8, .value_dim = 5};

  TestServer server_;
  const Tokens tokens_ = RandomTokens(kShape, 300, 1);
  const std::vector<float> queries_ = RandomQueries(kShape, 20, 1);
};

}  // namespace attnd::e2e

#endif  // ATTND_TESTS_E2E_ATTEND_FIXTURE_H_
