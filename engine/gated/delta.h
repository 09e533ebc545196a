// The delta rule (Schlag et al. 2021, arXiv:2102.11174; Yang et al. 2024, arXiv:2406.06484; gated:
// arXiv:2412.06464): a token writes not its value but what is missing from it. With S decayed by
// the token's own gate and rate b,
//   S <- S + k u^T,  u = b (v - S^T k),
// so that once the update u is known, a delta rule is a sum of k u^T like any other, and a block is
// sealed and answered with u in place of v. The updates of a block's rows, in row order, with D
// for the weights of decays.h seen from row i:
//   u_i = b_i (v_i - (x_i + y_i)),  x_i = (D k_i) S_sealed,  y_i = chain over j < i of s_ij u_j,
//   s_ij = (chain over features of k_i k_j) * w_j
// which is the forward substitution of the papers' triangular system. S_sealed is the f32 summary;
// x_i is left out where nothing is sealed. Nothing depends on rows after i, so updates
// may be made row by row as tokens come or for a whole block at once.
//
// Growth: with ||k||^2 b <= 2 a token makes nothing that is there longer; with longer keys S may
// grow exponentially until its numbers leave the range of f32 and tokens are refused. Any thread.
#ifndef ATTND_ENGINE_GATED_DELTA_H_
#define ATTND_ENGINE_GATED_DELTA_H_

#include <cstdint>

#include "engine/gated/decays.h"
#include "engine/linear/linear_layer.h"
#include "engine/scratch.h"

namespace attnd::engine {

// One head's rows of a block, of which `first` already have updates. Borrowed.
struct DeltaRows {
  std::int64_t first = 0;
  std::int64_t count = 0;           // after the first
  const float* features = nullptr;  // [first + count, dims.features]
  const float* values = nullptr;    // d_v numbers a row
  std::int64_t value_stride = 0;
  const float* rates = nullptr;  // one number a row
  std::int64_t rate_stride = 0;
  const float* summary = nullptr;  // [dims.features, dims.summary_columns]; null: nothing sealed
};

// Writes rows [first, first + count) of `updates`, [64, dims.value_columns], zeros beyond d_v.
// Does not fail; an overflow shows as infinities and NaNs.
void WriteUpdates(const LinearLayer& layer, const HeadDecays& decays, const DeltaRows& rows,
                  float* updates, Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_GATED_DELTA_H_
