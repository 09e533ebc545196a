// Keys as operands of matrix products: panels of 64 keys, transposed, each key with a bias that is
// added to its scores.
//
// The bias is one more coordinate, on which query rows are 1: score = q . k + bias. Panels may hold
// any choice of keys. Immutable once packed; any thread.
#ifndef ATTND_ENGINE_KDE_KEY_PANELS_H_
#define ATTND_ENGINE_KDE_KEY_PANELS_H_

#include <cstdint>
#include <span>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/kde/rows.h"
#include "engine/scratch.h"

namespace attnd::engine {

inline constexpr std::int64_t kPanelKeys = kBlockTokens;

class KeyPanels {
 public:
  KeyPanels() = default;
  // Keys chosen[i] of `keys`, in this order, with biases [chosen.size()] (null: zeros).
  KeyPanels(Rows keys, std::span<const std::int64_t> chosen, const double* biases);
  // All keys.
  KeyPanels(Rows keys, const double* biases);

  std::int64_t keys() const { return keys_; }
  std::int64_t panels() const { return (keys_ + kPanelKeys - 1) / kPanelKeys; }
  // Which columns of a panel hold keys.
  RowMask valid(std::int64_t panel) const { return FirstRows(keys_ - panel * kPanelKeys); }
  std::int64_t bytes() const { return data_.bytes(); }

  // scores [padded rows, 64] of a panel for PackQueries' rows.
  void Scores(const float* queries, std::int64_t padded_rows, std::int64_t panel,
              float* scores) const;

 private:
  void Pack(Rows keys, const std::int64_t* chosen, const double* biases);

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

#endif  // ATTND_ENGINE_KDE_KEY_PANELS_H_
