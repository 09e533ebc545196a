// Decays within a block: how much less a token counts, seen from a later one.
//
// A token's log-decays g <= 0 say by what everything before it is multiplied, exp(g). Seen from row
// r, row j <= r weighs exp(g_{j+1} + ... + g_r), and what was sealed before the block weighs
// exp(g_0 + ... + g_r). The definition, which fixes the bits: with s = 0 at row r, going back,
//   w_j = exp(s), then s = s + g_j, both in f32,
// and the last s is that of the sealed part. So only exponentials of differences are taken, none
// above 1: exp(-(g_0 + ...)), which a quotient of two cumulative products needs, would overflow.
//
// Any thread.
#ifndef ATTND_ENGINE_GATED_DECAYS_H_
#define ATTND_ENGINE_GATED_DECAYS_H_

#include <array>
#include <cstdint>

#include "engine/block.h"
#include "engine/linear/linear_layer.h"

namespace attnd::engine {

// Whether a layer's decays differ by feature.
bool DecaysPerFeature(const LinearLayer& layer);

// The log-decays of one head's rows of a block. Borrows from the layer and the rows.
class HeadDecays {
 public:
  // `log_decays`: those that came with the tokens, [rows, TailLayout::log_decays], 0 for masked
  // ones; not read if they do not come with tokens. A masked token decays nothing.
  HeadDecays(const LinearLayer& layer, const float* log_decays, RowMask valid, std::int64_t rows,
             std::int64_t head);

  // Seen from row `from`, which is -1 to rows - 1: writes the weights of rows 0 to `from` and
  // returns that of the sealed part. Not per feature.
  float RowWeights(std::int64_t from, float* weights) const;

  // Writes rows 0 to `from` of dense features, times their weights seen from row `from`, into
  // `decayed`, and the sealed part's weight, dims.features numbers, into `sealed`.
  void DecayRows(std::int64_t from, const float* features, float* decayed, float* sealed) const;

  // What totals are multiplied by when these rows are sealed, dims.features numbers in f64: the
  // exponential (the C library's, whose last bit may differ from one release to another) of the sum
  // of all rows' log-decays.
  void TotalFactors(double* factors) const;

 private:
  const LinearLayer& layer_;
  const std::int64_t rows_;
  const bool per_feature_;
  // Of row j: one number, or c of them; null: zeros.
  std::array<const float*, kBlockTokens> gates_ = {};
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_GATED_DECAYS_H_
