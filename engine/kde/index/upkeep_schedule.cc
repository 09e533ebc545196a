#include "engine/kde/index/upkeep_schedule.h"

#include <algorithm>
#include <iterator>

#include "engine/block.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kMainSpans[] = {
    kLeastMainTokens,      2 * kLeastMainTokens,  4 * kLeastMainTokens, 8 * kLeastMainTokens,
    16 * kLeastMainTokens, 32 * kLeastMainTokens, kEpochTokens};
static_assert(kEpochTokens == 64 * kLeastMainTokens);
constexpr std::int64_t kLadderSpans[] = {64 * kLeastLadderTokens, 16 * kLeastLadderTokens,
                                         4 * kLeastLadderTokens, kLeastLadderTokens};  // descending

// A main span is 31 of 32 parts; its build ends a block before the last part does.
constexpr std::int64_t MainBuildTokens(std::int64_t tokens) { return tokens / 31 - kBlockTokens; }
constexpr std::int64_t LadderBuildTokens(std::int64_t tokens) {
  return std::max(tokens / 16, kBlockTokens);
}

// Within an epoch positions count from its first token on. The length of the main span at one.
std::int64_t MainSpanAt(std::int64_t sealed) {
  std::int64_t tokens = 0;
  for (const std::int64_t main : kMainSpans) {
    if (main + MainBuildTokens(main) <= sealed) tokens = main;
  }
  return tokens;
}

// The span of an epoch in the stream; the first block of all is never part of one.
SpanBounds InStream(std::int64_t epoch, std::int64_t first, std::int64_t tokens) {
  if (epoch == 0 && first == 0) return {kBlockTokens, tokens - kBlockTokens};
  return {epoch * kEpochTokens + first, tokens};
}

// The longest main span that ends at or before a position; 0: none.
std::int64_t MainSpanBefore(std::int64_t position) {
  const auto* next = std::upper_bound(std::begin(kMainSpans), std::end(kMainSpans), position);
  return next == std::begin(kMainSpans) ? 0 : *(next - 1);
}

// The length of the main span after the one that ends at `main`.
std::int64_t NextMainSpan(std::int64_t main) {
  const auto* next = std::upper_bound(std::begin(kMainSpans), std::end(kMainSpans), main);
  return next == std::end(kMainSpans) ? main : *next;
}

// Whether there is, behind a main span that ends at `main`, a ladder span of this length at
// `first`: none reaches beyond the end of the next main span, which takes whole spans in.
bool OnLadder(std::int64_t main, std::int64_t first, std::int64_t tokens) {
  return first >= main && (first - main) % tokens == 0 && first + tokens <= NextMainSpan(main);
}

// When a ladder span behind a main span that ends at `main` is visible.
std::int64_t LadderVisibleFrom(std::int64_t main, std::int64_t first, std::int64_t tokens) {
  return std::max(first + tokens + LadderBuildTokens(tokens), main + MainBuildTokens(main));
}

// The longest ladder span at `first`, behind a main span that ends at `main`, that is visible; 0:
// none.
std::int64_t LadderSpanAt(std::int64_t main, std::int64_t first, std::int64_t sealed) {
  if (main == 0) return 0;
  for (const std::int64_t tokens : kLadderSpans) {
    if (OnLadder(main, first, tokens) && LadderVisibleFrom(main, first, tokens) <= sealed) {
      return tokens;
    }
  }
  return 0;
}

// Whether a ladder span is in use when it becomes visible: not where the next main span is sooner,
// or a longer span that holds it as soon.
bool EverVisible(std::int64_t main, std::int64_t first, std::int64_t tokens) {
  const std::int64_t visible = LadderVisibleFrom(main, first, tokens);
  if (MainSpanAt(visible) != main) return false;
  std::int64_t at = main;
  while (at < first) {
    const std::int64_t before = LadderSpanAt(main, at, visible);
    if (before == 0) return false;
    at += before;
  }
  return at == first && LadderSpanAt(main, first, visible) == tokens;
}

}  // namespace

bool IsMainSpan(const SpanBounds& span) {
  return span.first == kBlockTokens || span.first % kEpochTokens == 0;
}

std::int64_t BuildTokens(const SpanBounds& span) {
  if (!IsMainSpan(span)) return LadderBuildTokens(span.tokens);
  // The first span lacks the stream's first block.
  return MainBuildTokens(span.first == kBlockTokens ? span.end() : span.tokens);
}

std::int64_t VisibleFrom(const SpanBounds& span) {
  if (IsMainSpan(span)) return span.end() + BuildTokens(span);
  const std::int64_t epoch = span.first / kEpochTokens * kEpochTokens;
  const std::int64_t first = span.first - epoch;
  return epoch + LadderVisibleFrom(MainSpanBefore(first), first, span.tokens);
}

std::vector<SpanBounds> VisibleSpans(std::int64_t sealed) {
  std::vector<SpanBounds> spans;
  for (std::int64_t epoch = 0; epoch * kEpochTokens < sealed; ++epoch) {
    const std::int64_t local = sealed - epoch * kEpochTokens;
    const std::int64_t main = MainSpanAt(local);
    std::int64_t first = main;
    if (main > 0) spans.push_back(InStream(epoch, 0, main));
    for (std::int64_t tokens = LadderSpanAt(main, first, local); tokens > 0;
         tokens = LadderSpanAt(main, first, local)) {
      spans.push_back(InStream(epoch, first, tokens));
      first += tokens;
    }
    // What comes after a gap is still raw.
    if (first < kEpochTokens) break;
  }
  return spans;
}

std::vector<SpanBounds> SpansEndingAt(std::int64_t sealed) {
  std::vector<SpanBounds> spans;
  if (sealed <= 0) return spans;
  const std::int64_t epoch = (sealed - 1) / kEpochTokens;
  const std::int64_t end = sealed - epoch * kEpochTokens;
  for (auto tokens = std::rbegin(kLadderSpans); tokens != std::rend(kLadderSpans); ++tokens) {
    const std::int64_t first = end - *tokens;
    const std::int64_t main = MainSpanBefore(first);
    if (main == 0 || !OnLadder(main, first, *tokens)) continue;
    if (EverVisible(main, first, *tokens)) spans.push_back(InStream(epoch, first, *tokens));
  }
  for (const std::int64_t main : kMainSpans) {
    if (main == end) spans.push_back(InStream(epoch, 0, main));
  }
  return spans;
}

}  // namespace attnd::engine
