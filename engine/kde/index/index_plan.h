// Index answers of one query group, cut into chains and quanta.
//
// A chain is a tile of query rows of one kv-head. It goes, strip by strip of rows, over the
// summaries of all spans (leaf_strip.h), which begins the rows' sums with what will not be read;
// then all rows read the raw blocks and the open one, in the order of tokens; then every selected
// leaf, in the order of spans and leaves, is read by the rows that selected it, gathered for it.
// What is read goes through engine/exact/attend_block.h. So a row's bits depend on the row alone.
//
// When a tile's answers are written, some of its rows are audited (row_audit.h), which stated
// errors of later plans rest on; a plan's own all rest on what was known when it was reset.
//
// Where there is no index, and with `least_tokens` before there are so many, rows read everything.
//
// Thread safety: as engine.h demands of an AttendPlan.
#ifndef ATTND_ENGINE_KDE_INDEX_INDEX_PLAN_H_
#define ATTND_ENGINE_KDE_INDEX_INDEX_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/exact/attend_block.h"
#include "engine/exact/row_tile.h"
#include "engine/exact/softmax_sums.h"
#include "engine/exact/top_keys.h"
#include "engine/kde/index/audit_record.h"
#include "engine/kde/index/index_state.h"
#include "engine/kde/index/leaf_strip.h"
#include "engine/kde/index/plan_audits.h"
#include "engine/scratch.h"

namespace attnd::engine {

// When a row reads everything although there is an index.
struct ExactRule {
  std::int64_t least_tokens = 0;  // fewer sealed tokens than this
  float share = 1.0F;             // more of the keys than this would be read
};

class IndexPlan final : public AttendPlan {
 public:
  IndexPlan(const LayerShape& shape, const KdeConfig& config, const ExactRule& rule)
      : shape_(shape),
        layout_(shape),
        accuracy_(config.accuracy),
        audit_shares_(config.audits),
        rule_(rule),
        audits_(layout_) {}

  static std::int64_t Bytes(const LayerShape& shape, std::int64_t tokens, std::int64_t queries,
                            std::int64_t top_k);

  void Reset(const QueryGroup& group, const AnswerView& answer) override;
  std::int64_t chains() const override { return static_cast<std::int64_t>(chains_.size()); }
  bool Run(std::int64_t chain, Scratch& scratch) override;
  void Finish(Scratch& scratch) override;

 private:
  enum class Phase { kSummaries, kBlocks, kLeaves, kAudits };

  struct Chain {
    Phase phase = Phase::kSummaries;
    std::int64_t next = 0;  // row, block or column
  };

  // What a tile keeps between quanta, in this plan's memory.
  struct Tile {
    RowTile rows;
    float* queries = nullptr;
    SoftmaxSums sums;
    RowMask* selected = nullptr;  // [rows][words_]: leaves, then what a strip keeps of branches
    RowMasses* masses = nullptr;
    TopKeys top;
  };

  Tile TileOf(std::int64_t chain);
  // About what a row spends on summaries.
  std::int64_t SummaryFlops() const;
  // Rows of a tile.
  static std::int64_t TileRows(const LayerShape& shape, std::int64_t head_rows);
  // Leaves, and branches twice.
  std::int64_t row_words() const { return words_ + 2 * branch_words_; }
  void SetThreshold();
  void PackQueries(const Tile& tile) const;
  // These do some of the work, and return how many operations that was.
  std::int64_t Summarize(Tile& tile, Chain& chain, Scratch& scratch);
  std::int64_t AttendRaw(Tile& tile, Chain& chain, Scratch& scratch);
  std::int64_t AttendLeaves(Tile& tile, Chain& chain, Scratch& scratch);
  std::int64_t AttendLeaf(Tile& tile, const SpanView& span, std::int64_t leaf,
                          std::span<const std::int32_t> readers, std::int64_t next,
                          Scratch& scratch);

  // In index_plan_answers.cc.
  void Write(const Tile& tile) const;
  void WriteEstimates(const Tile& tile) const;

  // In index_plan_audits.cc. How wrong a row that leaves keys unread may be, up to a factor.
  struct Prediction {
    double deviation = 0.0;     // in spreads
    double unread_share = 0.0;  // of its weight
  };
  Prediction Predict(const Tile& tile, std::int64_t row) const;
  const AuditedFactor& FactorOf(const Tile& tile) const {
    return factors_[static_cast<std::size_t>(tile.rows.kv_head)];
  }
  double SpreadOf(const Tile& tile) const {
    return spreads_[static_cast<std::size_t>(tile.rows.kv_head)];
  }
  float StatedErrorOf(const Tile& tile, std::int64_t row) const;
  double AuditChanceOf(const Tile& tile) const;
  void ChooseAudits(const Tile& tile, std::int64_t chain);
  // The audited rows as a tile that reads what they left unread.
  Tile AuditTileOf(const Tile& tile, std::int64_t chain);
  void JudgeAudits(const Tile& tile, std::int64_t chain);

  const LayerShape shape_;
  const BlockLayout layout_;
  const Accuracy accuracy_;  // of queries that ask for none
  const AuditShares audit_shares_;
  const ExactRule rule_;

  QueryGroup group_;
  AnswerView answer_;
  const IndexState* state_ = nullptr;
  bool use_index_ = false;
  std::int64_t threshold_ = 0;
  std::int64_t head_rows_ = 0;
  std::int64_t head_tiles_ = 0;
  std::int64_t tile_rows_ = 0;
  std::int64_t padded_rows_ = 0;  // of a tile
  std::int64_t words_ = 0;        // of leaves selected, per row
  std::int64_t branch_words_ = 0;
  std::int64_t blocks_ = 0;  // raw blocks, and the open one

  AuditKind audit_kind_;
  std::vector<AuditedFactor> factors_;  // [kv_heads]
  std::vector<double> spreads_;         // [kv_heads]
  PlanAudits audits_;

  std::vector<Chain> chains_;
  std::vector<std::vector<SpanView>> spans_;  // [kv_heads]
  std::vector<RowMask> open_rows_;            // per row if causal, else one
  AlignedBuffer<float> rows_;                 // [chains] queries and sums
  AlignedBuffer<RowMask> selected_;           // [chains][tile rows][words]
  std::vector<RowMasses> masses_;             // [chains][tile rows]
  AlignedBuffer<float> top_scores_;           // [chains][tile rows, top_k]
  AlignedBuffer<std::int64_t> top_positions_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_INDEX_PLAN_H_
