// Linear attention over a sliding window: a query that sees tokens [0, p) is answered from the
// block of token p - 1 and the window_tokens / 64 - 1 sealed blocks before it, that is from tokens
//   max(0, 64 * floor((p - 1) / 64) + 64 - window_tokens) to p - 1.
//
// It differs from LinearEngine in its sealed state (window_state.h) and in what it accepts: the
// magnitudes of the block sums that a query sees have to stay within the range of f32 when they are
// added without their signs. A total that is small because large terms cancel would be accepted
// without a window; here some of those terms leave before the others do.
//
// Immutable; any thread.
#ifndef ATTND_ENGINE_LINEAR_WINDOW_ENGINE_H_
#define ATTND_ENGINE_LINEAR_WINDOW_ENGINE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/linear/linear_engine.h"

namespace attnd::engine {

class WindowEngine final : public LinearEngine {
 public:
  // `window_tokens` is a positive multiple of 64.
  WindowEngine(LinearLayer layer, std::int64_t window_tokens)
      : LinearEngine(std::move(layer)), sealed_blocks_(window_tokens / kBlockTokens - 1) {}

  std::shared_ptr<SealedState> NewState() const override;
  std::shared_ptr<SealedState> Clone(const SealedState& state) const override;
  absl::Status Seal(SealedState& state, std::int64_t sealed_tokens, std::span<const Block> blocks,
                    Scratch& scratch) const override;
  absl::Status CheckTail(const SealedState& state, const TailView& tail,
                         Scratch& scratch) const override;
  absl::Status Save(const SealedState& state, ByteWriter& writer) const override;
  absl::StatusOr<std::shared_ptr<SealedState>> Load(std::int64_t sealed_tokens,
                                                    ByteReader& reader) const override;

  std::int64_t seal_passes() const override;

  // A summary and an open block; per token of the window its part of the nodes.
  std::int64_t fixed_bytes() const override;
  std::int64_t bytes_per_token() const override;
  std::int64_t AppendBytes(std::int64_t position, std::int64_t count) const override;

 private:
  // Of a sealed block in the window, on average.
  std::int64_t BlockBytes() const;

  const std::int64_t sealed_blocks_;  // of a full window
};

// Requires a valid shape and window (MakeEngine checks them). InvalidArgument as
// MakeLinearLayer().
absl::StatusOr<std::unique_ptr<const Engine>> MakeWindowEngine(const LayerShape& shape,
                                                               const LinearConfig& config,
                                                               std::int64_t window_tokens);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_WINDOW_ENGINE_H_
