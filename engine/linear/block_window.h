// The newest blocks of a layer, up to a fixed number, as few nodes of sums.
//
// The grid is cut into chunks of 2^K blocks, the largest power of two that the window holds. The
// window is then the rest of one chunk, at most one whole chunk, and the beginning of a chunk that
// is not complete: at most 2 K + 1 nodes. Which nodes, in which order, depends on how many blocks
// there have been and on the window alone. Nothing is ever subtracted: a block that has left is in
// no node that is summed.
//
// A copy shares the nodes and costs as many pointers. Pushing a block joins K pairs of nodes at
// most, one on average. Not synchronised.
#ifndef ATTND_ENGINE_LINEAR_BLOCK_WINDOW_H_
#define ATTND_ENGINE_LINEAR_BLOCK_WINDOW_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/linear/linear_state.h"
#include "engine/linear/sum_node.h"

namespace attnd::engine {

class BlockWindow {
 public:
  // Holds `blocks` blocks at most; at least 0.
  explicit BlockWindow(std::int64_t blocks);

  // Adds the sums of the next block, a node of level 0. The oldest block leaves if there would be
  // too many. Throws std::bad_alloc; the window is then unusable.
  void Push(const LinearDims& dims, SumNodePtr block);

  // Calls use(node) for the nodes of the window, in the order in which they are to be added.
  template <typename Use>
  void ForNodes(const Use& use) const {
    for (const std::vector<SumNodePtr>* part : {&oldest_, &chunks_, &newest_}) {
      for (const SumNodePtr& node : *part) use(*node);
    }
  }

  // Fills an empty window as `pushed` blocks leave it, with what next(level) gives, asked for in
  // the order of ForNodes(). False where it gives null; the window is then unusable.
  template <typename Next>
  bool Restore(std::int64_t pushed, const Next& next) {
    blocks_ = std::min(pushed, most_blocks_);
    const std::int64_t chunk = std::int64_t{1} << chunk_level_;
    // Of the chunk in which the window begins, unless it is there as a whole, and of the last one.
    const std::int64_t leaving = (chunk - (pushed - blocks_) % chunk) % chunk;
    const std::int64_t coming = std::min(pushed % chunk, blocks_);
    const auto restore = [&next](std::int64_t level, std::vector<SumNodePtr>& part) {
      part.push_back(next(level));
      return part.back() != nullptr;
    };
    for (std::int64_t level = chunk_level_ - 1; level >= 0; --level) {
      if ((leaving >> level & 1) != 0 && !restore(level, oldest_)) return false;
    }
    for (std::int64_t left = blocks_ - leaving - coming; left > 0; left -= chunk) {
      if (!restore(chunk_level_, chunks_)) return false;
    }
    for (std::int64_t level = chunk_level_ - 1; level >= 0; --level) {
      if ((coming >> level & 1) != 0 && !restore(level, newest_)) return false;
    }
    return true;
  }

  std::int64_t most_blocks() const { return most_blocks_; }
  std::int64_t blocks() const { return blocks_; }
  std::int64_t chunk_level() const { return chunk_level_; }

 private:
  void DropOldest();

  std::int64_t most_blocks_;
  std::int64_t chunk_level_;  // K
  std::int64_t blocks_ = 0;
  std::vector<SumNodePtr> oldest_;  // of the chunk that is leaving, the oldest node last
  std::vector<SumNodePtr> chunks_;  // complete
  std::vector<SumNodePtr> newest_;  // of the chunk that is coming, levels descending
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_BLOCK_WINDOW_H_
