// Who reads which leaf: what asking every row at every leaf would say.
#include "engine/kde/index/leaf_readers.h"

#include <cstdint>
#include <random>
#include <vector>

#include "engine/block.h"
#include "gtest/gtest.h"
#include "tests/engine/harness_common.h"

namespace attnd::engine {
namespace {

TEST(KdeLeafReadersTest, AreTheRowsThatSelectedTheLeaf) {
  constexpr std::int64_t kStride = 3;
  std::mt19937_64 random(701);
  Scratch scratch;
  for (const std::int64_t rows : {0, 1, 2, 63, 500}) {
    std::vector<RowMask> selected(Size(rows * kStride));
    for (RowMask& word : selected) {
      word = random();
      word &= random();
      word &= random();
    }
    if (rows > 0) selected[0] = ~RowMask{0};
    for (const std::int64_t first : {0, 1, 40, 63}) {
      const Scratch::Frame frame(scratch);
      const LeafReaders readers(selected.data(), kStride, rows, first, scratch);
      for (std::int64_t leaf = 0; leaf < kBlockTokens; ++leaf) {
        std::vector<std::int32_t> expected;
        for (std::int64_t r = 0; r < rows && leaf >= first; ++r) {
          if (((selected[Size(r * kStride)] >> leaf) & 1U) != 0) {
            expected.push_back(static_cast<std::int32_t>(r));
          }
        }
        const auto of = readers.of(leaf);
        ASSERT_EQ(std::vector<std::int32_t>(of.begin(), of.end()), expected) << rows << " " << leaf;
      }
    }
  }
}

}  // namespace
}  // namespace attnd::engine
