// Answers of Efficient Attention for one group of queries.
//
// The definition, which fixes the bits of a row of kv-head h that sees sealed tokens, whose column
// a is summed in units of 2^(64 b_a), and tail rows; u_a is the largest steps of column a among the
// sealed and the visible unmasked tokens, and F is StepFactor() (key_columns.h):
//   e_a     = exp(scale q_a - largest of scale q)                f32
//   m_ja    = mantissa of k_ja times F(its steps, u_a)           0 where masked or not visible
//   z_a     = Z_a F(b_a, u_a) + the chain of additions of m_ja over the visible rows j
//   w_a     = e_a (1 / z_a)
//   [N | D] = (w_a F(b_a, u_a)) [S | Z]                          chain over the c columns
//   p_j     = w . m_j                                            chain over the c columns
//   [N | D] = [N | D] + p [V | 1]                                one chain over the tail rows
//   out     = N / D
// D is the sum of e, from 1 to c, as the very products that made N have it: so what 1 / z_a was
// rounded to hardly matters for the sum of a row's weights. Where no unmasked token is sealed
// [S | Z] is zero and its product is left out.
//
// Where the steps of each column are the same in all tokens that a tile sees (0 for ordinary keys)
// every factor is 1, and the rows of all cuts go through the same products; else each cut has its
// own, and tiles are smaller where there are several (a Step), so that a quantum stays one.
//
// Tiles, chains and quanta: query_tiles.h; what is written: answer_row.h. Threads: as engine.h
// says. The plan keeps no memory of its own; all of it is the thread's Scratch.
#ifndef ATTND_ENGINE_EFFICIENT_EFFICIENT_PLAN_H_
#define ATTND_ENGINE_EFFICIENT_EFFICIENT_PLAN_H_

#include <cstdint>

#include "engine/efficient/efficient_state.h"
#include "engine/efficient/key_columns.h"
#include "engine/engine.h"
#include "engine/linear/linear_layer.h"
#include "engine/linear/query_tiles.h"

namespace attnd::engine {

class EfficientPlan final : public AttendPlan {
 public:
  // The layer must outlive the plan.
  explicit EfficientPlan(const LinearLayer& layer);

  void Reset(const QueryGroup& group, const AnswerView& answer) override;
  std::int64_t chains() const override { return tiles().chains(); }
  bool Run(std::int64_t chain, Scratch& scratch) override;
  // Chains write disjoint rows: there is nothing to reduce.
  void Finish(Scratch&) override {}

 private:
  // What all rows of a chain have in common.
  struct Context {
    const std::int32_t* sealed_steps = nullptr;  // b; null: no unmasked token is sealed
    const float* sealed_key_sums = nullptr;      // Z, [columns]; zeros where none is
    const float* values = nullptr;               // [V | 1] as OpenValues() makes it
  };

  const QueryTiles& tiles() const { return cuts_apart_ ? apart_ : together_; }
  const EfficientState& sealed() const;
  // The tail rows that a tile sees.
  EncodedRows TailRows(const QueryTile& tile) const;
  // e of a tile's rows, [rows x columns], zeros beyond d.
  const float* Exponentials(const QueryTile& tile, Scratch& scratch) const;
  Context MakeContext(const QueryTile& tile, Scratch& scratch) const;

  // Answers a tile's rows, which are of one cut or see the same steps in each column.
  void Answer(const QueryTile& tile, const Context& context, const float* exponentials,
              Scratch& scratch) const;
  // w of a tile's rows, [padded_rows x columns], zeros beyond the rows.
  float* Weights(const QueryTile& tile, const Context& context, const AlignedRows& tail,
                 const float* exponentials, Scratch& scratch) const;
  // sums [padded_rows x summary_columns] (+)= p [V | 1].
  void AddTail(const QueryTile& tile, const Context& context, const AlignedRows& tail,
               const float* weights, float* sums, Scratch& scratch) const;

  const LinearLayer& layer_;
  QueryTiles together_;
  QueryTiles apart_;  // for cuts that go through products of their own
  bool cuts_apart_ = false;
  AnswerView answer_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EFFICIENT_EFFICIENT_PLAN_H_
