// The kde engine's sealed state: where a layer's sealed tokens lie. The first block, and those that
// no visible span holds yet, are raw blocks; all others lie in spans, as upkeep_schedule.h says.
// Raw blocks are always read.
//
// A copy shares blocks, spans, jobs and audits, and is cheap: tens of pointers, whatever the
// length.
//
// Thread safety: a state that is no longer appended to may be read from any thread; different
// states may be appended to at the same time even where they share jobs.
#ifndef ATTND_ENGINE_KDE_INDEX_INDEX_STATE_H_
#define ATTND_ENGINE_KDE_INDEX_INDEX_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/exact/segment.h"
#include "engine/kde/index/audit_record.h"
#include "engine/kde/index/index_span.h"
#include "engine/kde/index/span_build.h"
#include "engine/kde/value_spread.h"
#include "engine/scratch.h"

namespace attnd::engine {

class IndexState final : public SealedState {
 public:
  explicit IndexState(const LayerShape& shape);
  IndexState(const IndexState& other) = default;
  IndexState& operator=(const IndexState&) = delete;

  std::int64_t bytes() const override;

  // Stores complete blocks after those that are there and does their share of upkeep.
  // RESOURCE_EXHAUSTED where memory runs out; the state is then unusable.
  absl::Status Append(std::span<const Block> blocks, Scratch& scratch);

  // Does a step of the upkeep that the next block will ask for. True when none is left.
  bool PrepareBlock(Scratch& scratch) const;

  const BlockLayout& layout() const { return layout_; }
  std::int64_t sealed() const { return sealed_; }
  // Ascending, each with its own tokens.
  const std::vector<std::shared_ptr<const IndexSpan>>& spans() const { return spans_; }
  const std::vector<std::shared_ptr<const RawBlock>>& raw_blocks() const { return blocks_; }

  // Writes keys [64, H, d_k] and values [64, H, d_v] of sealed block `index` as they came, from
  // where they lie now, and returns which rows are unmasked.
  RowMask ReadBlock(std::int64_t index, float* keys, float* values) const;

  // Root mean square of |v - mean v| over the unmasked sealed tokens; 0 where there are none.
  double Spread(std::int64_t head) const {
    return values_[static_cast<std::size_t>(head)].Spread();
  }

  // What audits said of this state's answers and those of all its copies.
  AuditRecord& audits() const { return *audits_; }

  // The most that upkeep of a layer takes while it grows from one position to another, beside what
  // the tokens themselves take.
  static std::int64_t UpkeepBytes(const BlockLayout& layout, std::int64_t from, std::int64_t to);
  // About how many multiply-adds upkeep is meanwhile.
  static double UpkeepOperations(const BlockLayout& layout, std::int64_t from, std::int64_t to);

 private:
  void AddBlock(const Block& block);
  void KeepUp(Scratch& scratch);
  void Install(const std::shared_ptr<const IndexSpan>& span);
  void Begin(const SpanBounds& span);

  BlockLayout layout_;
  float scale_;
  std::int64_t sealed_ = 0;
  std::vector<std::shared_ptr<const IndexSpan>> spans_;
  std::vector<std::shared_ptr<const RawBlock>> blocks_;
  std::vector<std::shared_ptr<SpanBuild>> builds_;
  std::vector<ValueSpread> values_;  // [kv_heads]
  std::shared_ptr<AuditRecord> audits_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_INDEX_STATE_H_
