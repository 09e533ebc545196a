// A warmed-up certified row does not touch the allocator.
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/allocation_counter.h"
#include "tests/engine/kde/certified_harness.h"
#include "tests/engine/random_values.h"

namespace attnd::engine::certified_test {
namespace {

TEST(KdeCertifiedAllocation, WarmedUpRowDoesNotAllocate) {
  const Tokens tokens = RandomTokens(5000, 20, 24, 1);
  const Tokens fewer = RandomTokens(700, 20, 24, 2);
  const CodedContext context(tokens);
  const CodedContext small(fewer);
  const std::vector<float> queries = RandomValues(std::int64_t{10} * 20, 3, 0.4F);
  CertifiedRow row;
  const auto attend = [&](const CodedContext& to, std::int64_t query) {
    row.Reset(to.shape, {}, to.blocks, queries.data() + query * 20, 7);
    while (!row.Run()) {
    }
  };
  attend(context, 0);
  const std::int64_t before = AllocationsOfThisThread();
  EXPECT_GT(before, 0);
  for (std::int64_t query = 0; query < 10; ++query) {
    attend(context, query);
    attend(small, query);
  }
  EXPECT_EQ(AllocationsOfThisThread(), before);
}

}  // namespace
}  // namespace attnd::engine::certified_test
