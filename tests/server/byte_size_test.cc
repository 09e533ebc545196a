#include "server/byte_size.h"

#include <cstdint>
#include <limits>
#include <optional>

#include "gtest/gtest.h"

namespace attnd::server {
namespace {

TEST(ByteSizeTest, ReadsSuffixes) {
  EXPECT_EQ(ParseByteSize("0"), 0);
  EXPECT_EQ(ParseByteSize("4096"), 4096);
  EXPECT_EQ(ParseByteSize("4096B"), 4096);
  EXPECT_EQ(ParseByteSize("64KiB"), 65536);
  EXPECT_EQ(ParseByteSize("8MiB"), 8 << 20);
  EXPECT_EQ(ParseByteSize("8mib"), 8 << 20);
  EXPECT_EQ(ParseByteSize("1.5GiB"), std::int64_t{3} << 29);
  EXPECT_EQ(ParseByteSize("2TiB"), std::int64_t{2} << 40);
  EXPECT_EQ(ParseByteSize("-1"), -1);
}

TEST(ByteSizeTest, RefusesWhatIsNotAWholeNumberOfBytes) {
  for (const char* text : {"", "MiB", "B", "8M", "8MB", "eight", "1.5", "0.0001KiB", "nanKiB",
                           "infGiB", "1e300MiB", "8 MiB x", "9223372036854775808"}) {
    EXPECT_EQ(ParseByteSize(text), std::nullopt) << text;
  }
}

TEST(ByteSizeTest, RefusesAProductBeyond63Bits) {
  EXPECT_EQ(ParseByteSize("8388607TiB"), std::int64_t{8388607} << 40);
  EXPECT_EQ(ParseByteSize("8388608TiB"), std::nullopt);
}

TEST(ByteSizeTest, FormatsExactly) {
  EXPECT_EQ(FormatByteSize(0), "0");
  EXPECT_EQ(FormatByteSize(1000), "1000");
  EXPECT_EQ(FormatByteSize(1024), "1KiB");
  EXPECT_EQ(FormatByteSize(1536), "1536");
  EXPECT_EQ(FormatByteSize(8 << 20), "8MiB");
  for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{3} << 29, std::int64_t{5} << 40,
                                   std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(ParseByteSize(FormatByteSize(bytes)), bytes);
  }
}

}  // namespace
}  // namespace attnd::server
