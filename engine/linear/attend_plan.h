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
// denominator in units of the largest feature. Terms with a_j = +0 do not change a chain's bits (up
// to the sign of a zero, and results have + 0 added), so the tail may be computed 16, 32, 48 or 64
// wide. Where no unmasked token is sealed [S | Z] is zero and its product is left out.
//
// A chain is one kv-head and a tile of (query, head in group) rows, query-major, and one quantum.
// The tile is as large as about a millisecond of arithmetic allows. A product has at least 4 rows:
// with the most sums that a layer may have, 2^23, they are 72 million operations and read 32 MB,
// which is about two.
//
// A row flagged kEmpty or kOverflow is zeros in the outputs. Numerators and denominators are those
// before the guard: zeros for kEmpty, NaN where they overflowed themselves. Threads: as
// engine.h says. The plan keeps no memory of its own; all of it is the thread's Scratch.
#ifndef ATTND_ENGINE_LINEAR_ATTEND_PLAN_H_
#define ATTND_ENGINE_LINEAR_ATTEND_PLAN_H_

#include <array>
#include <cstdint>

#include "engine/engine.h"
#include "engine/gemm.h"

namespace attnd::engine {

class LinearEngine;

class LinearAttendPlan final : public AttendPlan {
 public:
  // The engine must outlive the plan.
  explicit LinearAttendPlan(const LinearEngine& engine);

  void Reset(const QueryGroup& group, const AnswerView& answer) override;
  std::int64_t chains() const override { return chains_; }
  bool Run(std::int64_t chain, Scratch& scratch) override;
  // Chains write disjoint rows: there is nothing to reduce.
  void Finish(Scratch&) override {}

 private:
  // One chain's rows [first, first + rows) of kv-head `head`.
  struct Tile {
    std::int64_t head;
    std::int64_t first;
    std::int64_t rows;
    std::int64_t padded_rows;  // a row count of engine/gemm.h
    std::int64_t tail_rows;    // the most tail rows that one of them sees
  };

  Tile TileOf(std::int64_t chain) const;
  RowMask VisibleTail(std::int64_t query) const;

  // Calls use(i, query, query_head) for the tile's rows i in order. (A 64-bit division per row and
  // use costs as much as the row's guard.)
  template <typename Use>
  void ForRows(const Tile& tile, const Use& use) const;

  // By row of a tile.
  using Exponents = std::array<std::int32_t, kGemmMaxRows>;

  const float* QueryFeatures(const Tile& tile, Exponents& exponents, Scratch& scratch) const;
  void MapTile(const Tile& tile, const float* scaled, float* features, Exponents& exponents,
               Scratch& scratch) const;
  // The largest exponent that each row sees.
  void VisibleExponents(const Tile& tile, Exponents& exponents) const;
  void AddTail(const Tile& tile, const float* features, const Exponents& visible, bool accumulate,
               float* sums, Scratch& scratch) const;
  void WriteRow(std::int64_t query, std::int64_t query_head, const float* sums,
                std::int32_t exponent) const;

  const LinearEngine& engine_;
  std::int64_t tile_rows_;
  QueryGroup group_;
  AnswerView answer_;
  std::int64_t head_rows_ = 0;
  std::int64_t head_tiles_ = 0;
  std::int64_t chains_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_ATTEND_PLAN_H_
