#include "engine/kde/index/index_state.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/exact/key_value_state.h"
#include "engine/kde/index/upkeep_schedule.h"

namespace attnd::engine {
namespace {

bool Within(const SpanBounds& outer, std::int64_t first, std::int64_t end) {
  return first >= outer.first && end <= outer.end();
}

// The part of a span's build that is to be done when so many tokens are sealed, 0 to 1.
double ShareDue(const SpanBounds& span, std::int64_t sealed) {
  const std::int64_t done = std::clamp(sealed - span.end(), std::int64_t{0}, BuildTokens(span));
  return static_cast<double>(done) / static_cast<double>(BuildTokens(span));
}

}  // namespace

IndexState::IndexState(const LayerShape& shape)
    : layout_(shape),
      scale_(shape.scale),
      values_(static_cast<std::size_t>(shape.kv_heads), ValueSpread(shape.value_dim)),
      audits_(std::make_shared<AuditRecord>(shape.kv_heads)) {}

std::int64_t IndexState::bytes() const {
  std::int64_t bytes = static_cast<std::int64_t>(sizeof(IndexState)) +
                       layout_.kv_heads * ValueSpread::Bytes(layout_.value_dim) +
                       AuditRecord::Bytes(layout_.kv_heads) +
                       static_cast<std::int64_t>(blocks_.size()) * RawBlock::Bytes(layout_);
  for (const auto& piece : spans_) bytes += piece->bytes();
  const auto held = [](const auto& pieces, const auto& piece) {
    return std::find(pieces.begin(), pieces.end(), piece) != pieces.end();
  };
  for (const auto& build : builds_) {
    bytes += SpanBuild::Bytes(layout_, build->span());
    // What only a job still needs.
    for (const auto& piece : build->input().spans) {
      if (!held(spans_, piece)) bytes += piece->bytes();
    }
    for (const auto& block : build->input().blocks) {
      if (!held(blocks_, block)) bytes += RawBlock::Bytes(layout_);
    }
  }
  return bytes;
}

void IndexState::AddBlock(const Block& block) {
  blocks_.push_back(std::make_shared<RawBlock>(layout_, sealed_, block));
  sealed_ += kBlockTokens;
  AddValues(block, values_);
}

void IndexState::Install(const std::shared_ptr<const IndexSpan>& span) {
  std::erase_if(spans_, [&](const auto& piece) {
    return Within(span->span, piece->span.first, piece->span.end());
  });
  std::erase_if(blocks_, [&](const auto& block) {
    return Within(span->span, block->first, block->first + kBlockTokens);
  });
  const auto place = std::find_if(spans_.begin(), spans_.end(), [&](const auto& piece) {
    return piece->span.first > span->span.first;
  });
  spans_.insert(place, span);
}

void IndexState::Begin(const SpanBounds& span) {
  SpanInput input;
  input.span = span;
  for (const auto& piece : spans_) {
    if (Within(span, piece->span.first, piece->span.end())) input.spans.push_back(piece);
  }
  for (const auto& block : blocks_) {
    if (Within(span, block->first, block->first + kBlockTokens)) input.blocks.push_back(block);
  }
  if (!IsMainSpan(span)) input.lender = spans_.front();
  builds_.push_back(std::make_shared<SpanBuild>(layout_, std::move(input), scale_));
}

void IndexState::KeepUp(Scratch& scratch) {
  for (const auto& build : builds_) {
    if (sealed_ >= VisibleFrom(build->span())) {
      Install(build->Finish(scratch));
    } else {
      build->Advance(ShareDue(build->span(), sealed_), scratch);
    }
  }
  std::erase_if(builds_, [&](const auto& build) { return sealed_ >= VisibleFrom(build->span()); });
  for (const SpanBounds& span : SpansEndingAt(sealed_)) Begin(span);
}

bool IndexState::PrepareBlock(Scratch& scratch) const {
  return std::ranges::all_of(builds_, [&](const auto& build) {
    return build->Step(ShareDue(build->span(), sealed_ + kBlockTokens), scratch);
  });
}

absl::Status IndexState::Append(std::span<const Block> blocks, Scratch& scratch) {
  try {
    for (const Block& block : blocks) {
      AddBlock(block);
      KeepUp(scratch);
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the index after token ", sealed_));
  }
  return absl::OkStatus();
}

RowMask IndexState::ReadBlock(std::int64_t index, float* keys, float* values) const {
  const std::int64_t first = index * kBlockTokens;
  const auto span = std::ranges::find_if(
      spans_, [&](const auto& piece) { return Within(piece->span, first, first + kBlockTokens); });
  if (span != spans_.end()) return (*span)->ReadBlock(layout_, first, keys, values);
  const auto block =
      std::ranges::lower_bound(blocks_, first, {}, [](const auto& piece) { return piece->first; });
  for (std::int64_t head = 0; head < layout_.kv_heads; ++head) {
    ReadRows(layout_, (*block)->view(layout_, head), head, keys, values);
  }
  return (*block)->valid;
}

// The most that jobs take that are there at the same time; a finished one may have to wait until
// the main span that it lies behind is visible.
std::int64_t IndexState::UpkeepBytes(const BlockLayout& layout, std::int64_t from,
                                     std::int64_t to) {
  std::vector<SpanBounds> jobs;
  std::int64_t most = 0;
  std::int64_t bytes = 0;
  // A job that is there at `from` began at most a sixteenth of an epoch before.
  const std::int64_t earliest = std::max(from - kEpochTokens / 16, std::int64_t{0});
  for (std::int64_t at = RoundUp(earliest, kSpanGrid); at <= to; at += kSpanGrid) {
    std::erase_if(jobs, [&](const SpanBounds& job) {
      const bool done = VisibleFrom(job) < at;
      if (done) bytes -= SpanBuild::Bytes(layout, job);
      return done;
    });
    for (const SpanBounds& job : SpansEndingAt(at)) {
      jobs.push_back(job);
      bytes += SpanBuild::Bytes(layout, job);
    }
    if (at + kSpanGrid > from) most = std::max(most, bytes);
  }
  return most;
}

double IndexState::UpkeepOperations(const BlockLayout& layout, std::int64_t from, std::int64_t to) {
  // Of a key in a build. Measured: 1.7 us where keys and values have 100 components (Zen 4); a core
  // does 13 billion in a second.
  const double per_key =
      3000.0 + 90.0 * static_cast<double>(layout.key_dim + layout.padded_value_dim);
  // Keys are built into two main spans and, on the ladder between them, into three or four more.
  constexpr double kBuilds = 5.5;
  if (to - from > kEpochTokens) {
    return static_cast<double>(to - from) * kBuilds * per_key *
           static_cast<double>(layout.kv_heads);
  }
  double keys = 0.0;
  const std::int64_t earliest = std::max(from - kEpochTokens / 16, std::int64_t{0});
  for (std::int64_t end = RoundUp(earliest, kSpanGrid); end <= to; end += kSpanGrid) {
    for (const SpanBounds& span : SpansEndingAt(end)) {
      keys += (ShareDue(span, to) - ShareDue(span, from)) * static_cast<double>(span.tokens);
    }
  }
  return keys * per_key * static_cast<double>(layout.kv_heads);
}

}  // namespace attnd::engine
