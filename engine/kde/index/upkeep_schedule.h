// Which pieces of a stream of tokens an index covers at a position, and when each piece is built:
// arithmetic on positions, so that an answer never depends on how fast anybody was.
//
// A main span covers the stream from its second block on up to the newest of the lengths 31/32 of
// powers of two, from 3,968 on; behind it a ladder of spans of 16,384, 4,096, 1,024 and 256 tokens,
// at multiples of their length from the main span's end and not beyond the end of the next main
// span, covers what it can. Tokens from the last span on, fewer than 400 but for a thirty-second of
// the context while the next main span is built, are in no span. Building a span begins when its
// last token has been sealed. A main span is visible at the last block of the power of two, 64
// tokens before it; others after a sixteenth of their length, 64 tokens at least, and not before
// the main span that they lie behind. At kEpochTokens the main span stops growing and another
// stream of spans begins, which bounds how many tokens are ever held twice.
//
// Lengths of main spans double: every key is built into two of them, in all. Of ladder spans those
// are built that are ever visible.
//
// Positions count sealed tokens, multiples of 64. Thread-safe; cannot fail.
#ifndef ATTND_ENGINE_KDE_INDEX_UPKEEP_SCHEDULE_H_
#define ATTND_ENGINE_KDE_INDEX_UPKEEP_SCHEDULE_H_

#include <cstdint>
#include <vector>

namespace attnd::engine {

// Tokens [first, first + tokens), both multiples of 64.
struct SpanBounds {
  std::int64_t first = 0;
  std::int64_t tokens = 0;

  std::int64_t end() const { return first + tokens; }
  friend bool operator==(const SpanBounds&, const SpanBounds&) = default;
};

inline constexpr std::int64_t kEpochTokens = std::int64_t{248} * 1024;
inline constexpr std::int64_t kSpanGrid = 128;  // all spans end at a multiple of this
inline constexpr std::int64_t kLeastMainTokens = 3968;
inline constexpr std::int64_t kLeastLadderTokens = 256;
inline constexpr std::int64_t kEpochSpans = 16;  // visible ones, at most

// Whether a main span may be this one.
bool IsMainSpan(const SpanBounds& span);

// Tokens that a span's build takes to become visible, counted from its end on.
std::int64_t BuildTokens(const SpanBounds& span);

// The position from which on answers use a span.
std::int64_t VisibleFrom(const SpanBounds& span);

// Disjoint spans in ascending order that cover [64, end of the last one) without gaps. Empty where
// there is none yet.
std::vector<SpanBounds> VisibleSpans(std::int64_t sealed);

// The spans that end at `sealed` and will be visible some day, in ascending order of length.
std::vector<SpanBounds> SpansEndingAt(std::int64_t sealed);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_UPKEEP_SCHEDULE_H_
