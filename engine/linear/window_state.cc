#include "engine/linear/window_state.h"

#include <algorithm>
#include <cstddef>

#include "engine/aligned_buffer.h"
#include "engine/linear/fold.h"
#include "engine/linear/row_exponents.h"

namespace attnd::engine {

std::int64_t WindowState::bytes() const {
  std::int64_t bytes = static_cast<std::int64_t>(sizeof(*this)) + summary_bytes();
  window_.ForNodes(
      [&](const SumNode& node) { bytes += KeptBytes(dims(), kv_heads(), node.level); });
  return bytes;
}

std::int64_t WindowState::OwnBytes(std::int64_t kv_heads, const LinearDims& dims) {
  return static_cast<std::int64_t>(sizeof(WindowState)) +
         kv_heads * (dims.summary() * 4 + static_cast<std::int64_t>(sizeof(std::int32_t)));
}

std::int64_t WindowState::share(std::int64_t head) const {
  std::int64_t share = 0;
  window_.ForNodes(
      [&](const SumNode& node) { share += node.shares[static_cast<std::size_t>(head)]; });
  return share;
}

void WindowState::Summarize() {
  std::int64_t tokens = 0;
  window_.ForNodes([&](const SumNode& node) { tokens += node.unmasked; });
  set_unmasked(tokens);
  if (window_.blocks() == 0) return;
  if (!has_summary()) AllocateSummary();
  AlignedBuffer<double> totals = AlignedBuffer<double>::Uninitialized(dims().totals());
  for (std::int64_t head = 0; head < kv_heads(); ++head) {
    std::int32_t largest = kNoExponent;
    window_.ForNodes([&](const SumNode& node) {
      largest = std::max(largest, node.exponents[static_cast<std::size_t>(head)]);
    });
    std::fill_n(totals.data(), totals.size(), 0.0);
    window_.ForNodes(
        [&](const SumNode& node) { AddNode(dims(), node, head, largest, totals.data()); });
    exponent(head) = largest;
    RoundToSummary(dims(), totals.data(), summary(head));
  }
}

}  // namespace attnd::engine
