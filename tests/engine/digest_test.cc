// Digests: independent of cutting, different for different streams.
#include "engine/digest.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

Digest Of(const std::vector<std::uint8_t>& bytes, std::int64_t piece) {
  Digester digester;
  const auto size = static_cast<std::int64_t>(bytes.size());
  for (std::int64_t i = 0; i < size; i += piece) {
    digester.Update(bytes.data() + i, std::min(piece, size - i));
  }
  return digester.Result();
}

TEST(Digest, DoesNotDependOnCutting) {
  std::vector<std::uint8_t> bytes(5000);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  const Digest whole = Of(bytes, 5000);
  for (const std::int64_t piece : {1, 2, 63, 64, 65, 255, 256, 1023, 4999}) {
    EXPECT_EQ(Of(bytes, piece), whole) << piece;
  }
}

TEST(Digest, EveryByteAndTheLengthCount) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  std::vector<std::uint8_t> bytes(300, 0);
  for (std::size_t length = 0; length <= 300; ++length) {
    const Digest digest =
        Of({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)}, 300);
    seen.emplace(digest.high, digest.low);
  }
  for (std::size_t i = 0; i < 300; ++i) {
    bytes[i] = 1;
    const Digest digest = Of(bytes, 300);
    bytes[i] = 0;
    seen.emplace(digest.high, digest.low);
  }
  EXPECT_EQ(seen.size(), 601U);
}

TEST(Digest, AResultDoesNotEndTheStream) {
  Digester digester;
  digester.Update(1);
  const Digest first = digester.Result();
  EXPECT_EQ(digester.Result(), first);
  digester.Update(2);
  Digester both;
  both.Update(1);
  both.Update(2);
  EXPECT_EQ(digester.Result(), both.Result());
  EXPECT_NE(digester.Result(), first);
  // Moving takes the stream along.
  const Digester moved = std::move(both);
  EXPECT_EQ(moved.Result(), digester.Result());
}

}  // namespace
}  // namespace attnd::engine
