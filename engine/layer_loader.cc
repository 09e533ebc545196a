#include "engine/layer_loader.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/block.h"
#include "engine/saved_layer.h"

namespace attnd::engine {
namespace {

// Beyond every position, and far enough from the end of 64 bits for sums of a few.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 62;

absl::Status DamagedRoot(const std::string& what) {
  return absl::DataLossError(absl::StrCat("root: ", what));
}

absl::Status DamagedSegment(const std::string& what) {
  return absl::DataLossError(absl::StrCat("segment: ", what));
}

Digest GetDigest(ByteReader& reader) {
  Digest digest;
  digest.high = reader.Get<std::uint64_t>();
  digest.low = reader.Get<std::uint64_t>();
  return digest;
}

// Of a layer, as its root has them.
struct Extent {
  std::int64_t sealed_tokens = 0;
  std::int64_t tail_rows = 0;
  std::int64_t first_kept = 0;

  std::int64_t blocks() const { return sealed_tokens / kBlockTokens; }
  bool valid() const {
    return sealed_tokens >= 0 && sealed_tokens <= kMostTokens &&
           sealed_tokens % kBlockTokens == 0 && tail_rows >= 0 && tail_rows <= kBlockTokens &&
           (tail_rows > 0 || sealed_tokens == 0);
  }
};

}  // namespace

LayerLoader::LayerLoader(const Engine& engine, const std::shared_ptr<const LayerState>& base)
    : engine_(&engine), draft_(engine, base) {}

absl::StatusOr<LayerLoader> LayerLoader::Make(const Engine& engine, std::span<const char> root) {
  absl::StatusOr<std::span<const char>> bytes = CheckedBytes(root, "root");
  if (!bytes.ok()) return bytes.status();
  ByteReader reader(*bytes);
  absl::Status form = CheckForm(engine, kRootMagic, "root", reader);
  if (!form.ok()) return form;
  Extent stored;
  stored.sealed_tokens = reader.Get<std::int64_t>();
  stored.tail_rows = reader.Get<std::int64_t>();
  stored.first_kept = reader.Get<std::int64_t>();
  const Digest sealed_digest = GetDigest(reader);
  const Digest digest = GetDigest(reader);
  if (!stored.valid()) {
    return DamagedRoot(absl::StrCat(stored.sealed_tokens, " sealed and ", stored.tail_rows,
                                    " open tokens are not what a layer has"));
  }
  const std::int64_t first_kept =
      engine.keeps_rows() ? engine.FirstKeptBlock(*engine.NewStateAt(stored.blocks())) : 0;
  if (stored.first_kept != first_kept) {
    return DamagedRoot(absl::StrCat("the first block that is kept is ", stored.first_kept,
                                    "; of this layer it is ", first_kept));
  }
  SavedRows tail;
  if (!tail.Read(engine, stored.tail_rows, reader)) {
    return DamagedRoot("the rows of the open block are cut off, or masked ones are not zeros");
  }
  auto base = std::make_shared<LayerState>();
  if (engine.keeps_rows()) {
    base->sealed = engine.NewStateAt(first_kept);
    base->sealed_tokens = first_kept * kBlockTokens;
  } else {
    absl::StatusOr<std::shared_ptr<SealedState>> sums = engine.Load(stored.sealed_tokens, reader);
    if (!sums.ok()) return sums.status();
    base->sealed = *std::move(sums);
    base->sealed_tokens = stored.sealed_tokens;
    base->digest = sealed_digest;
  }
  if (!reader.complete()) {
    return DamagedRoot(absl::StrCat("its ", root.size(), " bytes are not those of its contents"));
  }
  LayerLoader loader(engine, base);
  loader.first_block_ = loader.next_block_ = first_kept;
  loader.until_block_ = engine.keeps_rows() ? stored.blocks() : 0;
  loader.sealed_digest_ = sealed_digest;
  loader.digest_ = digest;
  loader.tail_ = std::move(tail);
  loader.tail_rows_ = stored.tail_rows;
  return loader;
}

absl::Status LayerLoader::Take(std::span<const char> segment) {
  if (segment_blocks_ > 0) {
    return absl::FailedPreconditionError("segment: the one before it is not done with");
  }
  absl::StatusOr<std::span<const char>> bytes = CheckedBytes(segment, "segment");
  if (!bytes.ok()) return bytes.status();
  ByteReader reader(*bytes);
  absl::Status form = CheckForm(*engine_, kSegmentMagic, "segment", reader);
  if (!form.ok()) return form;
  const auto first = reader.Get<std::int64_t>();
  const auto count = reader.Get<std::int64_t>();
  const std::int64_t block_bytes = StoredRowBytes(*engine_, kBlockTokens);
  if (first < 0 || first > kMostTokens || count < 1 || count > kMostSegmentBlocks ||
      reader.left() != count * block_bytes) {
    return DamagedSegment(
        absl::StrCat(segment.size(), " bytes do not hold ", count, " blocks from ", first, " on"));
  }
  // Nothing that is asked for.
  if (first + count <= first_block_ || first >= until_block_) return absl::OkStatus();
  const bool begins = next_block_ == first_block_;
  if (first > next_block_ || (first < next_block_ && !begins)) {
    return DamagedSegment(
        absl::StrCat("it begins at block ", first, "; the next one is block ", next_block_));
  }
  const std::int64_t until = std::min(first + count, until_block_);
  // Without blocks before those that are kept.
  segment_ = ByteReader(
      bytes->last(static_cast<std::size_t>((first + count - next_block_) * block_bytes)));
  segment_blocks_ = until - next_block_;
  next_block_ = until;
  return absl::OkStatus();
}

// Appends rows that were read; what a layer refuses nobody has saved.
absl::Status LayerLoader::Append(const SavedRows& rows, Scratch& scratch) {
  const TokenBatch batch = rows.batch();
  const std::int64_t position = draft_.position();
  absl::Status appended = draft_.Append(batch, 0, batch.count, nullptr, scratch);
  if (appended.ok()) return appended;
  return absl::DataLossError(absl::StrCat("tokens ", position, " to ", position + batch.count - 1,
                                          ": ", std::string(appended.message())));
}

absl::StatusOr<bool> LayerLoader::Step(Scratch& scratch) {
  if (segment_blocks_ > 0) {
    if (!draft_.PrepareSeal(kBlockTokens, scratch)) return false;
    if (!rows_.Read(*engine_, kBlockTokens, segment_)) {
      return DamagedSegment("the rows of a block are cut off, or masked ones are not zeros");
    }
    absl::Status appended = Append(rows_, scratch);
    if (!appended.ok()) return appended;
    --segment_blocks_;
  } else if (next_block_ == until_block_ && tail_rows_ > 0) {
    if (!draft_.PrepareSeal(tail_rows_, scratch)) return false;
    absl::Status appended = Append(tail_, scratch);
    if (!appended.ok()) return appended;
    tail_rows_ = 0;
  }
  return segment_blocks_ == 0 && (tail_rows_ == 0 || next_block_ < until_block_);
}

absl::Status LayerLoader::AddSegment(std::span<const char> segment, Scratch& scratch) {
  absl::Status taken = Take(segment);
  if (!taken.ok()) return taken;
  return RunSteps(scratch);
}

absl::Status LayerLoader::RunSteps(Scratch& scratch) {
  for (;;) {
    absl::StatusOr<bool> done = Step(scratch);
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
  }
}

absl::StatusOr<std::shared_ptr<const LayerState>> LayerLoader::Finish(Scratch& scratch) {
  absl::Status run = RunSteps(scratch);
  if (!run.ok()) return run;
  if (next_block_ < until_block_) {
    return absl::DataLossError(
        absl::StrCat("segments: blocks ", next_block_, " to ", until_block_ - 1, " are missing"));
  }
  absl::Status fits = draft_.CheckTail(scratch);
  if (!fits.ok()) return DamagedRoot(std::string(fits.message()));
  auto state = std::make_shared<LayerState>(*draft_.Finish());
  if (first_block_ > 0) state->digest = sealed_digest_;
  if (state->digest != sealed_digest_ || LayerDigest(*engine_, *state) != digest_) {
    return absl::DataLossError("layer: the digest of its tokens is not the one that was saved");
  }
  return state;
}

}  // namespace attnd::engine
