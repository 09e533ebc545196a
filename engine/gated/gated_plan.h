// Answers of the gated engine for one group of queries.
//
// The definition, which fixes the bits of a row r of kv-head h with features f = phi(scale * q)
// that sees tail rows 0 to n: with weights w and sealed part's weight z of decays.h seen from row
// e,
//   e = n, or n - 1 where the rule reads before it writes,
//   [N | D] = (f z) [S | Z]           chain over the c features (panels of 256, engine/gemm.h)
//   a_j     = (f . phi(k_j)) w_j      j <= e; chain over the c features, for visible unmasked rows
//   a_j     = f . (w_j phi(k_j))      the same where decays differ by feature or there is a bonus
//   u:
//                                     then w_n = u
//   [N | D] = [N | D] + a [V | 1]     one chain over the tail rows, added once
// and then the guard. V are the updates of the delta rule where there is one.
//
// The second form needs keys of its own for every n: once a tile for an Attend, whose queries all
// see the same rows, but for every query of a Step, whose tiles are smaller for it. Threads, tiles
// and what is written: as for the plan of engine/linear/attend_plan.h.
#ifndef ATTND_ENGINE_GATED_GATED_PLAN_H_
#define ATTND_ENGINE_GATED_GATED_PLAN_H_

#include <cstdint>

#include "engine/engine.h"
#include "engine/gated/decays.h"
#include "engine/linear/linear_layer.h"
#include "engine/linear/query_tiles.h"

namespace attnd::engine {

class GatedAttendPlan final : public AttendPlan {
 public:
  // The layer must outlive the plan.
  explicit GatedAttendPlan(const LinearLayer& layer);

  void Reset(const QueryGroup& group, const AnswerView& answer) override;
  std::int64_t chains() const override { return tiles_->chains(); }
  bool Run(std::int64_t chain, Scratch& scratch) override;
  // Chains write disjoint rows: there is nothing to reduce.
  void Finish(Scratch&) override {}

 private:
  // Some rows of a tile that see the same rows of the tail.
  struct Span {
    std::int64_t first = 0;
    std::int64_t rows = 0;
    std::int64_t cut = 0;
  };
  template <typename Use>
  void ForSpans(const QueryTile& tile, const Use& use) const;

  HeadDecays DecaysOf(const QueryTile& tile) const;
  // The row that weights are seen from.
  std::int64_t SeenFrom(std::int64_t cut) const;
  // Both write scores [padded_rows x 64] and multiply the features by the sealed part's weight.
  void ScoreByRow(const QueryTile& tile, float* features, float* scores, Scratch& scratch) const;
  void ScoreByFeature(const QueryTile& tile, float* features, float* scores,
                      Scratch& scratch) const;
  void AddTail(const QueryTile& tile, float* scores, bool accumulate, float* sums,
               Scratch& scratch) const;

  const LinearLayer& layer_;
  const bool keys_by_cut_;
  QueryTiles together_;  // rows that see the same keys
  QueryTiles apart_;     // each query with keys of its own
  QueryTiles* tiles_ = &together_;
  AnswerView answer_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_GATED_GATED_PLAN_H_
