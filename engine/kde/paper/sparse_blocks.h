// Which keys a query attends to exactly in the practical form of KDEformer (arXiv:2302.02451,
// section 3.4): the block that an angular hash puts both in, A_spar.
//
// Keys are ordered by their rank (angular_hash.h), equal ranks by index, and cut into blocks of an
// equal number of panels of 64 keys, the last of which may hold fewer. A query belongs to the block
// in which keys of its own rank stand (the middle one of them), or would stand. So a query's block
// depends on the keys and its own row only: any number of keys and of queries will do.
// Plain values; any thread.
#ifndef ATTND_ENGINE_KDE_PAPER_SPARSE_BLOCKS_H_
#define ATTND_ENGINE_KDE_PAPER_SPARSE_BLOCKS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace attnd::engine {

class SparseBlocks {
 public:
  SparseBlocks() = default;
  // Blocks of about `block_keys` keys, at least 1. ranks: of all keys, at least one; below 2^16.
  SparseBlocks(std::span<const std::uint32_t> ranks, std::int64_t block_keys);

  // Keys by their place in the order.
  const std::vector<std::int64_t>& order() const { return order_; }
  std::int64_t blocks() const { return blocks_; }
  // A block is the panels [first_panel(b), first_panel(b + 1)), the places [first_place(b),
  // first_place(b + 1)) of the order.
  std::int64_t first_panel(std::int64_t block) const;
  std::int64_t first_place(std::int64_t block) const;

  std::int64_t BlockOfPlace(std::int64_t place) const;
  std::int64_t BlockOfRank(std::uint32_t rank) const;

 private:
  std::vector<std::int64_t> order_;
  std::vector<std::uint32_t> sorted_ranks_;
  std::int64_t panels_ = 0;
  std::int64_t blocks_ = 0;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_SPARSE_BLOCKS_H_
