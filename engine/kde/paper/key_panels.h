// Keys as operands of matrix products: panels of 64 keys, transposed, each key with a bias that is
// added to its scores.
//
// The bias is one more coordinate, on which query rows are 1: score = q . k + bias. Panels may hold
// any choice of keys. Once packed they are not changed: any thread.
#ifndef ATTND_ENGINE_KDE_PAPER_KEY_PANELS_H_
#define ATTND_ENGINE_KDE_PAPER_KEY_PANELS_H_

#include <cstdint>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/kde/rows.h"
#include "engine/scratch.h"

namespace attnd::engine {

inline constexpr std::int64_t kPanelKeys = kBlockTokens;

class KeyPanels {
 public:
  KeyPanels() = default;
  // For `keys` keys of `dim` numbers, none of which is packed yet.
  KeyPanels(std::int64_t keys, std::int64_t dim);

  std::int64_t keys() const { return keys_; }
  std::int64_t panels() const { return (keys_ + kPanelKeys - 1) / kPanelKeys; }
  // Which columns of a panel hold keys.
  RowMask valid(std::int64_t panel) const { return FirstRows(keys_ - panel * kPanelKeys); }

  // Packs a panel: key i of the panels is row chosen[i] of `rows` (null: row i), with the bias
  // biases[i] (null: 0).
  void Pack(std::int64_t panel, Rows rows, const std::int64_t* chosen, const double* biases);
  void PackAll(Rows rows, const std::int64_t* chosen, const double* biases);

  // scores [padded rows, 64] of a panel for PackQueries' rows.
  void Scores(const float* queries, std::int64_t padded_rows, std::int64_t panel,
              float* scores) const;

 private:
  std::int64_t keys_ = 0;
  std::int64_t dim_ = 0;
  AlignedBuffer<float> data_;  // [panels][dim + 1][64]
};

// The largest row count of a tile of queries.
inline constexpr std::int64_t kTileQueries = 192;

// Query rows chosen[0 .. count) times `scale`, each with the coordinate 1, padded with zero rows to
// a row count of engine/gemm.h: [padded, dim + 1], in `scratch`. 1 <= count <= kTileQueries.
float* PackQueries(Rows queries, const std::int64_t* chosen, std::int64_t count, float scale,
                   Scratch& scratch);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_KEY_PANELS_H_
