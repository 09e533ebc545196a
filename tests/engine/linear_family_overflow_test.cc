// What the engines of the linear family refuse alike.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/engine/linear_harness.h"

namespace attnd::engine::linear_test {
namespace {

// By the name of its map.
class FamilyOverflow : public testing::TestWithParam<std::string> {};

// A total that leaves the range of f32 and comes back must be refused in any grouping.
TEST_P(FamilyOverflow, RefusalDoesNotDependOnTheGroupingOfBlocks) {
  const LayerShape shape = {1, 1, 1, 1, 1.0F};
  const auto engine = MakeLinear(shape, Config(GetParam()));
  // A feature of 1.
  const float key = GetParam() == "efficient" ? 0.0F : 1.0F;
  const float value = 0.7F / 64 * std::numeric_limits<float>::max();
  std::vector<float> values = Repeat(value, 128);
  values.resize(256, -value);
  const Stream stream = TokensOf(shape, Repeat(key, 256), values);
  const std::vector<Block> blocks = BlocksOf(stream);
  ASSERT_EQ(blocks.size(), 4U);
  Scratch scratch;
  const std::shared_ptr<SealedState> at_once = engine->NewState();
  EXPECT_FALSE(engine->Seal(*at_once, 0, blocks, scratch).ok());
  const std::shared_ptr<SealedState> one_by_one = engine->NewState();
  EXPECT_TRUE(engine->Seal(*one_by_one, 0, {blocks.data(), 1}, scratch).ok());
  EXPECT_FALSE(engine->Seal(*one_by_one, 64, {blocks.data() + 1, 1}, scratch).ok());
}

INSTANTIATE_TEST_SUITE_P(All, FamilyOverflow, testing::Values("identity", "efficient"),
                         [](const auto& map) { return map.param; });

}  // namespace
}  // namespace attnd::engine::linear_test
