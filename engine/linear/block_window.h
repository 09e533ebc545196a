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
