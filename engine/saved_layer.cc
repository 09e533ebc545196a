#include "engine/saved_layer.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/byte_io.h"
#include "engine/saved_form.h"

namespace attnd::engine {
namespace {

void PutDigest(const Digest& digest, ByteWriter& writer) {
  writer.Put(digest.high);
  writer.Put(digest.low);
}

}  // namespace

absl::StatusOr<std::string> SaveRoot(const Engine& engine, const LayerState& state) {
  ByteWriter writer;
  PutForm(engine, kRootMagic, writer);
  writer.Put(state.sealed_tokens);
  writer.Put(state.tail_rows);
  writer.Put(engine.FirstKeptBlock(*state.sealed));
  PutDigest(state.digest, writer);
  PutDigest(LayerDigest(engine, state), writer);
  Block rows;
  if (state.tail != nullptr) {
    const Tail& tail = *state.tail;
    rows = {tail.keys.data(),       tail.values.data(), state.tail_valid,
            tail.log_decays.data(), tail.rates.data(),  &tail};
  }
  PutRows(engine, rows, state.tail_rows, writer);
  if (!engine.keeps_rows()) {
    absl::Status saved = engine.Save(*state.sealed, writer);
    if (!saved.ok()) return saved;
  }
  return std::move(writer).Finish();
}

absl::StatusOr<std::string> SaveSegment(const Engine& engine, const LayerState& state,
                                        std::int64_t first_block, std::int64_t blocks) {
  if (!engine.keeps_rows()) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment: an engine of kind ", engine.name(), " that keeps sums has none"));
  }
  if (blocks < 1 || blocks > kMostSegmentBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment: blocks is ", blocks, "; it must be 1 to ", kMostSegmentBlocks));
  }
  const std::int64_t kept = engine.FirstKeptBlock(*state.sealed);
  const std::int64_t last = state.sealed_tokens / kBlockTokens - blocks;
  if (first_block < kept || first_block > last) {
    return absl::InvalidArgumentError(absl::StrCat("segment: first_block is ", first_block,
                                                   "; it must be ", kept, " to ", last, " for ",
                                                   blocks, " blocks"));
  }
  ByteWriter writer;
  PutForm(engine, kSegmentMagic, writer);
  writer.Put(first_block);
  writer.Put(blocks);
  const LayerShape& shape = engine.shape();
  std::vector<float> keys(static_cast<std::size_t>(kBlockTokens * shape.key_row()));
  std::vector<float> values(static_cast<std::size_t>(kBlockTokens * shape.value_row()));
  for (std::int64_t i = 0; i < blocks; ++i) {
    Block block = {.keys = keys.data(), .values = values.data()};
    block.valid = engine.ReadBlock(*state.sealed, first_block + i, keys.data(), values.data());
    PutRows(engine, block, kBlockTokens, writer);
  }
  return std::move(writer).Finish();
}

}  // namespace attnd::engine
