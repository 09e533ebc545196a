// Which rows of a tile read each of 64 neighbouring leaves, from the leaves that each row selected.
//
// The rows of a large tile share few leaves: to ask every row at every leaf took 7 % of a query's
// time over 131,072 keys.
//
// Borrows its memory from the caller's frame. One thread's; cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_LEAF_READERS_H_
#define ATTND_ENGINE_KDE_INDEX_LEAF_READERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/block.h"
#include "engine/scratch.h"

namespace attnd::engine {

class LeafReaders {
 public:
  // Row r selected leaf j where bit j of selected[r * stride] is set; leaves before `first` have
  // no readers.
  LeafReaders(const RowMask* selected, std::int64_t stride, std::int64_t rows, std::int64_t first,
              Scratch& scratch);

  // In ascending order.
  std::span<const std::int32_t> of(std::int64_t leaf) const {
    const auto at = static_cast<std::size_t>(leaf);
    return {rows_ + begins_[at], rows_ + begins_[at + 1]};
  }

 private:
  std::array<std::int64_t, kBlockTokens + 1> begins_{};
  std::int32_t* rows_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_LEAF_READERS_H_
