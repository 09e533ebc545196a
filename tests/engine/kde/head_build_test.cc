// A build's progress, which the work of a seal is shared out by, comes to the whole and no more.
#include "engine/kde/index/head_build.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/block.h"
#include "engine/kde/index/index_span.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"
#include "tests/engine/random_values.h"

namespace attnd::engine {
namespace {

constexpr LayerShape kShape = {1, 1, 24, 24, 0.3F};

std::shared_ptr<const IndexSpan> Build(const SpanInput& input) {
  const BlockLayout layout(kShape);
  Scratch scratch;
  HeadBuild build(layout, input, 0, kShape.scale);
  double before = 0.0;
  while (!build.done()) {
    build.Step(scratch);
    EXPECT_GE(build.progress(), before);
    EXPECT_LE(build.progress(), 1.0 + 1e-6);
    before = build.progress();
  }
  EXPECT_GE(before, 0.999) << input.span.tokens;
  auto span = std::make_shared<IndexSpan>();
  span->span = input.span;
  span->heads.push_back(build.Take());
  return span;
}

TEST(KdeHeadBuildTest, ProgressComesToTheWhole) {
  const BlockLayout layout(kShape);
  std::shared_ptr<const IndexSpan> main;
  for (const std::int64_t tokens : {3968, 256, 1024, 4096}) {
    SpanInput input;
    input.span = {main == nullptr ? kBlockTokens : std::int64_t{3968}, tokens};
    input.lender = main;
    const std::vector<float> keys = RandomValues(tokens * kShape.key_row(), 801);
    const std::vector<float> values = RandomValues(tokens * kShape.value_row(), 802);
    for (std::int64_t t = 0; t < tokens; t += kBlockTokens) {
      Block block;
      block.keys = keys.data() + t * kShape.key_row();
      block.values = values.data() + t * kShape.value_row();
      block.valid = ~RowMask{0};
      input.blocks.push_back(std::make_shared<RawBlock>(layout, input.span.first + t, block));
    }
    const auto built = Build(input);
    EXPECT_EQ(built->heads.front()->keys(), tokens);
    if (main == nullptr) main = built;
  }
}

}  // namespace
}  // namespace attnd::engine
