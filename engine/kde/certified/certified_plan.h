// Answers of mode CERTIFIED for one query group, cut into chains and quanta.
//
// A chain is a run of (kv-head, query, query head) rows, each through certified_row.h, over the
// sealed blocks with their codes and the open block without: its tokens are always evaluated. So a
// row's bits depend on the row alone. Sampling is keyed by the session's seed, the layer, the
// query head, the tokens the row sees and the row's bits.
//
// Accuracy, as CertifiedOptions (OptionsFor):
//  - target_error t, in units of the values' spread: 64 (0.01 / t)^2 pairs of draws, at least 32
//    and at most 4,096. Errors fall as the root of the pairs, and 64 have bars of about 0.002 on
//    word vectors (certified_row.h); the rest is for values that 8 bits hold less well. 0: 64.
//  - max_keys m: at most half of it for heavy keys, a quarter for draws, and a quarter for keys
//    that would be drawn anyway. With m below 5 nothing is drawn, and errors are unknown.
// Where heavy keys and draws may come to a quarter of the sealed tokens (1,536 of them with the
// defaults) and the budget allows for all, all keys are evaluated: a gathered key costs as much as
// several in their order.
//
// The largest keys (AnswerView::top_k) are exact: where they are wanted all keys are scored in
// f32 as well, and count as evaluated.
//
// Thread safety: as engine.h demands of an AttendPlan.
#ifndef ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_PLAN_H_
#define ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_PLAN_H_

#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/exact/row_tile.h"
#include "engine/exact/segment.h"
#include "engine/kde/certified/certified_row.h"
#include "engine/kde/certified/certified_state.h"
#include "engine/kde/row_top_keys.h"
#include "engine/scratch.h"

namespace attnd::engine {

CertifiedOptions OptionsFor(const Accuracy& accuracy);

// Whether rows over so many sealed tokens evaluate all keys.
bool EvaluatesAll(const Accuracy& accuracy, std::int64_t sealed_tokens);

class CertifiedPlan final : public AttendPlan {
 public:
  CertifiedPlan(const LayerShape& shape, const KdeConfig& config)
      : shape_(shape), layout_(shape), config_(config) {}

  static std::int64_t Bytes(const LayerShape& shape, std::int64_t tokens, std::int64_t queries,
                            std::int64_t top_k);

  void Reset(const QueryGroup& group, const AnswerView& answer) override;
  std::int64_t chains() const override { return chain_count_; }
  bool Run(std::int64_t chain, Scratch& scratch) override;
  void Finish(Scratch& /*scratch*/) override {}

 private:
  enum class Phase { kBegin, kAttend, kTopKeys };

  struct Chain {
    Phase phase = Phase::kBegin;
    std::int64_t next = 0;  // row
    std::int64_t end = 0;
    std::int64_t kv_head = -1;           // of the blocks
    std::vector<CertifiedBlock> blocks;  // sealed ones, then the open one
    AlignedBuffer<float> open;           // the open block's rows
    std::vector<float> query;            // scaled
    CertifiedRow row;
    RowTopKeys top;
    std::int64_t top_block = 0;
  };

  RowTile TileOf(const Chain& chain) const;
  void GatherBlocks(Chain& chain, std::int64_t kv_head, Scratch& scratch) const;
  void Begin(Chain& chain, Scratch& scratch) const;
  // Some blocks. True when all are offered.
  bool OfferTopKeys(Chain& chain) const;
  void WriteAnswer(const Chain& chain) const;
  void WriteEstimates(const Chain& chain) const;
  void WriteTop(Chain& chain) const;

  const LayerShape shape_;
  const BlockLayout layout_;
  const KdeConfig config_;

  QueryGroup group_;
  AnswerView answer_;
  const CertifiedState* state_ = nullptr;  // null: no sealed tokens
  CertifiedOptions options_;
  bool evaluate_all_ = false;
  std::int64_t head_rows_ = 0;
  std::int64_t chain_count_ = 0;
  std::int64_t steps_per_quantum_ = 1;
  std::vector<Chain> chains_;  // kept; chain_count_ are in use
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_CERTIFIED_CERTIFIED_PLAN_H_
