#include "engine/kde/upkeep_schedule.h"

#include <algorithm>
#include <iterator>

#include "engine/block.h"

namespace attnd::engine {
namespace {

constexpr std::int64_t kMainSpans[] = {1024,      3 * 1024,   5 * 1024,   7 * 1024,    10 * 1024,
                                       14 * 1024, 20 * 1024,  28 * 1024,  40 * 1024,   56 * 1024,
                                       80 * 1024, 112 * 1024, 160 * 1024, kEpochTokens};
constexpr std::int64_t kLadderSpans[] = {16 * 1024, 4 * 1024, kLeastSpanTokens};  // descending

constexpr std::int64_t BuildTokensOf(std::int64_t tokens) {
  return std::max(tokens / 16 / kBlockTokens, std::int64_t{2}) * kBlockTokens;
}

// Within an epoch positions count from its first token on. The length of the main span at one.
std::int64_t MainSpanAt(std::int64_t sealed) {
  std::int64_t tokens = 0;
  for (const std::int64_t main : kMainSpans) {
    if (main + BuildTokensOf(main) <= sealed) tokens = main;
  }
  return tokens;
}

// The span of an epoch in the stream; the first block of all is never part of one.
TokenSpan InStream(std::int64_t epoch, std::int64_t first, std::int64_t tokens) {
  if (epoch == 0 && first == 0) return {kBlockTokens, tokens - kBlockTokens};
  return {epoch * kEpochTokens + first, tokens};
}

// The longest ladder span at `first` that is visible; 0: none.
std::int64_t LadderSpanAt(std::int64_t first, std::int64_t sealed) {
  for (const std::int64_t tokens : kLadderSpans) {
    if (first % tokens == 0 && first + tokens <= kEpochTokens &&
        first + tokens + BuildTokensOf(tokens) <= sealed) {
      return tokens;
    }
  }
  return 0;
}

}  // namespace

std::int64_t BuildTokens(const TokenSpan& span) {
  // The first span lacks the stream's first block.
  return BuildTokensOf(span.first == kBlockTokens ? span.end() : span.tokens);
}

std::int64_t VisibleFrom(const TokenSpan& span) { return span.end() + BuildTokens(span); }

std::vector<TokenSpan> VisibleSpans(std::int64_t sealed) {
  std::vector<TokenSpan> spans;
  for (std::int64_t epoch = 0; epoch * kEpochTokens < sealed; ++epoch) {
    const std::int64_t local = sealed - epoch * kEpochTokens;
    std::int64_t first = MainSpanAt(local);
    if (first > 0) spans.push_back(InStream(epoch, 0, first));
    for (std::int64_t tokens = LadderSpanAt(first, local); tokens > 0;
         tokens = LadderSpanAt(first, local)) {
      spans.push_back(InStream(epoch, first, tokens));
      first += tokens;
    }
    // What comes after a gap is still raw.
    if (first < kEpochTokens) break;
  }
  return spans;
}

std::vector<TokenSpan> SpansEndingAt(std::int64_t sealed) {
  std::vector<TokenSpan> spans;
  if (sealed <= 0) return spans;
  const std::int64_t epoch = (sealed - 1) / kEpochTokens;
  const std::int64_t end = sealed - epoch * kEpochTokens;
  for (auto tokens = std::rbegin(kLadderSpans); tokens != std::rend(kLadderSpans); ++tokens) {
    if (end % *tokens != 0) continue;
    const std::int64_t first = end - *tokens;
    if (MainSpanAt(end + BuildTokensOf(*tokens)) <= first) {
      spans.push_back(InStream(epoch, first, *tokens));
    }
  }
  for (const std::int64_t main : kMainSpans) {
    if (main == end) spans.push_back(InStream(epoch, 0, main));
  }
  return spans;
}

}  // namespace attnd::engine
