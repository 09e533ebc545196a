// Which spans there are at a position: arithmetic, so all positions are tried.
#include "engine/kde/index/upkeep_schedule.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/block.h"
#include "gtest/gtest.h"

namespace attnd::engine {
namespace {

bool Holds(const std::vector<SpanBounds>& spans, const SpanBounds& span) {
  return std::find(spans.begin(), spans.end(), span) != spans.end();
}

// Two epochs and a half, so that the borders between them are among the positions.
constexpr std::int64_t kLast = 5 * kEpochTokens / 2;

TEST(KdeScheduleTest, SpansCoverAllButTheNewestTokensWithoutGaps) {
  for (std::int64_t sealed = 0; sealed <= kLast; sealed += kBlockTokens) {
    const std::vector<SpanBounds> spans = VisibleSpans(sealed);
    std::int64_t end = kBlockTokens;
    for (const SpanBounds& span : spans) {
      ASSERT_EQ(span.first, end) << sealed;
      ASSERT_GE(span.tokens, kLeastLadderTokens) << sealed;
      ASSERT_EQ(span.end() % kBlockTokens, 0) << sealed;
      ASSERT_LE(VisibleFrom(span), sealed);
      end = span.end();
    }
    // Less than a ladder span, and what is sealed while the next main span is built; nothing of an
    // epoch's beginning is in a span.
    const std::int64_t local = sealed % kEpochTokens;
    ASSERT_LE(sealed - end, local < 4096 ? 4096 : kLeastLadderTokens + 128 + local / 31) << sealed;
    ASSERT_EQ(end == kBlockTokens ? 0 : end % kSpanGrid, 0) << sealed;
    ASSERT_LE(spans.size(), static_cast<std::size_t>(kEpochSpans * (sealed / kEpochTokens + 1)));
  }
}

// What is visible has been built, from its end on and in time; what is built becomes visible; and
// nothing becomes visible at any other position.
TEST(KdeScheduleTest, EverySpanIsBegunAtItsEndAndAppearsWhenItsBuildEnds) {
  std::vector<SpanBounds> building;
  std::vector<SpanBounds> before;
  for (std::int64_t sealed = 0; sealed <= kLast; sealed += kBlockTokens) {
    const std::vector<SpanBounds> spans = VisibleSpans(sealed);
    for (const SpanBounds& span : spans) {
      if (Holds(before, span)) continue;
      ASSERT_EQ(VisibleFrom(span), sealed);
      ASSERT_TRUE(Holds(building, span)) << span.first << " " << span.tokens;
    }
    for (const SpanBounds& span : building) {
      if (VisibleFrom(span) == sealed) {
        ASSERT_TRUE(Holds(spans, span)) << span.first << " " << span.tokens;
      }
    }
    std::erase_if(building, [&](const SpanBounds& span) { return VisibleFrom(span) <= sealed; });
    for (const SpanBounds& span : SpansEndingAt(sealed)) {
      ASSERT_EQ(span.end(), sealed);
      building.push_back(span);
    }
    before = spans;
  }
}

// Its input is there when a build begins: no visible span crosses its borders.
TEST(KdeScheduleTest, BuildsTakeWholeSpans) {
  for (std::int64_t sealed = 0; sealed <= kLast; sealed += kBlockTokens) {
    for (const SpanBounds& begun : SpansEndingAt(sealed)) {
      for (const SpanBounds& span : VisibleSpans(sealed)) {
        const bool inside = span.first >= begun.first && span.end() <= begun.end();
        ASSERT_TRUE(inside || span.end() <= begun.first) << sealed;
      }
    }
  }
}

// Spans that a longer one replaces before they are seen were built for nothing.
TEST(KdeScheduleTest, NothingIsBuiltThatIsNeverVisible) {
  EXPECT_EQ(SpansEndingAt(4992), (std::vector<SpanBounds>{{3968, 1024}}));
  EXPECT_EQ(SpansEndingAt(4736), (std::vector<SpanBounds>{{4480, 256}}));
  EXPECT_TRUE(SpansEndingAt(126976 + 256).empty());  // visible with the main span, as part of 1,024
}

// What upkeep costs: how often a key is built into a span, on average.
TEST(KdeScheduleTest, KeysAreBuiltAFewTimesEach) {
  std::int64_t built = 0;
  for (std::int64_t sealed = 0; sealed <= kLast; sealed += kBlockTokens) {
    for (const SpanBounds& span : SpansEndingAt(sealed)) built += span.tokens;
    if (sealed >= 16384) {
      ASSERT_LE(2 * built, 11 * sealed) << sealed;
    }
  }
  EXPECT_GE(built, kLast);
}

// Where contexts like to end, the main span has just become visible.
TEST(KdeScheduleTest, MainSpansAreVisibleAtPowersOfTwo) {
  for (std::int64_t power = 4096; power < 262144; power *= 2) {
    const SpanBounds main = {kBlockTokens, power / 32 * 31 - kBlockTokens};
    EXPECT_TRUE(Holds(VisibleSpans(power - kBlockTokens), main)) << power;
    EXPECT_FALSE(Holds(VisibleSpans(power - 2 * kBlockTokens), main)) << power;
    EXPECT_TRUE(IsMainSpan(main));
  }
  EXPECT_EQ(VisibleSpans(15872 + 4096 + 448),
            (std::vector<SpanBounds>{
                {kBlockTokens, 15872 - kBlockTokens}, {15872, 4096}, {15872 + 4096, 256}}));
  EXPECT_FALSE(IsMainSpan({15872, 4096}));
  // Spans behind a main span that is being built wait for it.
  EXPECT_EQ(VisibleFrom({126976, 1024}), 131072 - kBlockTokens);
  EXPECT_EQ(VisibleSpans(131072), (std::vector<SpanBounds>{{kBlockTokens, 126976 - kBlockTokens},
                                                           {126976, 1024},
                                                           {128000, 1024},
                                                           {129024, 1024},
                                                           {130048, 256},
                                                           {130304, 256},
                                                           {130560, 256}}));
}

}  // namespace
}  // namespace attnd::engine
