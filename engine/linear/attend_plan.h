// Answers of linear attention for one group of queries.
//
// The definition, which fixes the bits of a row r of kv-head h with features f = phi(scale * q):
//   [N | D] = f [S | Z]               chain over the c features (panels of 256, engine/gemm.h)
//   a_j     = f . phi(k_j)            chain over the c features, for visible unmasked tail rows j,
//                                     +0 for all others
//   [N | D] = [N | D] + a [V | 1]     one chain over the tail rows, added once
// and then the guard (denominator_guard.h). Where features are scaled (row_exponents.h), E is the
// largest exponent among the sealed tokens and the visible tail rows, a_j is multiplied by
// 2^(exponent of k_j - E) and the first product by 2^(exponent of [S | Z] - E), and numerator and
// denominator are times 2^(E + exponent of q), which the guard does not see: it judges the
// denominator in units of the largest feature. Where no unmasked token is sealed [S | Z] is zero
// and its product is left out.
//
// Tiles, chains and quanta: query_tiles.h; what is written: answer_row.h. Threads: as engine.h
// says. The plan keeps no memory of its own; all of it is the thread's Scratch.
#ifndef ATTND_ENGINE_LINEAR_ATTEND_PLAN_H_
#define ATTND_ENGINE_LINEAR_ATTEND_PLAN_H_

#include <cstdint>

#include "engine/engine.h"
#include "engine/linear/linear_layer.h"
#include "engine/linear/query_tiles.h"

namespace attnd::engine {

class LinearAttendPlan final : public AttendPlan {
 public:
  // The layer must outlive the plan.
  explicit LinearAttendPlan(const LinearLayer& layer) : layer_(layer), tiles_(layer) {}

  void Reset(const QueryGroup& group, const AnswerView& answer) override;
  std::int64_t chains() const override { return tiles_.chains(); }
  bool Run(std::int64_t chain, Scratch& scratch) override;
  // Chains write disjoint rows: there is nothing to reduce.
  void Finish(Scratch&) override {}

 private:
  using Exponents = QueryTiles::Exponents;

  const LinearSummary& sealed() const;
  // The largest exponent that each row sees.
  void VisibleExponents(const QueryTile& tile, Exponents& exponents) const;
  // sums [padded_rows x summary_columns] (+)= a [V | 1].
  void AddTail(const QueryTile& tile, const float* features, const Exponents& visible,
               bool accumulate, float* sums, Scratch& scratch) const;

  const LinearLayer& layer_;
  QueryTiles tiles_;
  AnswerView answer_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_ATTEND_PLAN_H_
