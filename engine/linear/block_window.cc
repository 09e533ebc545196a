#include "engine/linear/block_window.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

namespace attnd::engine {

BlockWindow::BlockWindow(std::int64_t blocks)
    : most_blocks_(blocks),
      chunk_level_(static_cast<std::int64_t>(
          std::bit_width(static_cast<std::uint64_t>(std::max(blocks, std::int64_t{1}))) - 1)) {}

void BlockWindow::Push(const LinearDims& dims, SumNodePtr block) {
  if (most_blocks_ == 0) return;
  SumNodePtr node = std::move(block);
  while (!newest_.empty() && newest_.back()->level == node->level) {
    node = JoinNodes(dims, newest_.back(), node);
    newest_.pop_back();
  }
  (node->level == chunk_level_ ? chunks_ : newest_).push_back(std::move(node));
  if (blocks_ == most_blocks_) {
    DropOldest();
  } else {
    ++blocks_;
  }
}

void BlockWindow::DropOldest() {
  // There is a chunk if no rest of one: what is not complete has less than 2^K blocks.
  if (oldest_.empty()) {
    oldest_.push_back(std::move(chunks_.front()));
    chunks_.erase(chunks_.begin());
  }
  const SumNodePtr first = std::move(oldest_.back());
  oldest_.pop_back();
  for (const SumList* rest = first->rest.get(); rest != nullptr; rest = rest->next.get()) {
    oldest_.push_back(rest->node);
  }
}

}  // namespace attnd::engine
