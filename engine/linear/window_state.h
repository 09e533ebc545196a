// The sealed state of linear attention over a sliding window: the sums of its newest blocks
// (block_window.h), and their total as it is answered from.
//
// The total is added up afresh, in f64, each time that blocks were sealed, and rounded once to f32.
// So nothing of a block that left the window is in it, whatever its magnitude was.
//
// Not synchronised: one thread owns a state until it is published, then nobody changes it. A copy
// shares the nodes.
#ifndef ATTND_ENGINE_LINEAR_WINDOW_STATE_H_
#define ATTND_ENGINE_LINEAR_WINDOW_STATE_H_

#include <cstdint>

#include "engine/linear/block_window.h"
#include "engine/linear/linear_state.h"
#include "engine/linear/sum_node.h"

namespace attnd::engine {

class WindowState final : public LinearSummary {
 public:
  // The window holds `blocks` sealed blocks at most; at least 0.
  WindowState(std::int64_t kv_heads, const LinearDims& dims, std::int64_t blocks)
      : LinearSummary(kv_heads, dims), window_(blocks) {}
  WindowState(const WindowState& other) = default;
  WindowState& operator=(const WindowState&) = delete;

  std::int64_t bytes() const override;

  // Of a state with a summary, without the nodes of its window.
  static std::int64_t OwnBytes(std::int64_t kv_heads, const LinearDims& dims);

  // The shares of a head's blocks together.
  std::int64_t share(std::int64_t head) const;

  const BlockWindow& window() const { return window_; }
  BlockWindow& window() { return window_; }

  // Adds the sums of a block. The summary is not what it says until Summarize().
  void Push(SumNodePtr block) { window_.Push(dims(), std::move(block)); }

  // Adds up the window and rounds the total to the summary. Requires that no head's share exceeds
  // kWholeShare.
  void Summarize();

 private:
  BlockWindow window_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_WINDOW_STATE_H_
