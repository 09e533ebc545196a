// Linear attention whose sums decay and are corrected: RetNet (arXiv:2307.08621), Mamba-2
// (arXiv:2405.21060), GLA (arXiv:2312.06635), RWKV-5 and -6 (arXiv:2404.05892), DeltaNet
// (arXiv:2406.06484), Gated DeltaNet (arXiv:2412.06464). Per kv-head, for a token with features
// k = phi(key), value v, and, as the rule has it, log-decays g <= 0 and a rate b:
//   decay:  A = exp(g), one number per head (constant or with the token) or c of them
//   plain:  S <- A S + k v^T,                         Z <- A Z + k
//   delta:  S <- A S + k u^T,  u = b (v - (A S)^T k)  (delta.h; decays per head only)
// and a query q of that token reads
//   after:  phi(q) S,  or  phi(q) S / phi(q) Z if normalised
//   first:  phi(q) (S_before + diag(bonus) k v^T), where the rule reads before it writes (RWKV).
//           A later query sees the newest token as its own does: it is always in the open block.
// A masked token changes nothing: neither does it decay what is there.
//
// Blocks are folded with the weights of decays.h; the totals are f64, multiplied by exp of the
// block's summed log-decays, and rounded to the f32 summary block by block. Error against the
// definition in f64: 1e-6 of the largest term, whatever the length, as old terms fade.
//
// Merging: contexts with decays make an ordered chain (S_1 exp(g of 2) + S_2), which needs the
// second one's summed decay; partial answers do not add up, so there are none. Delta rules cannot
// be merged: what the second context wrote depends on the first. Truncating: to positions that a
// checkpoint and the rows after it reach; a decay cannot be undone. Windows: none; forgetting is
// the rule's own.
//
// Immutable; any thread.
#ifndef ATTND_ENGINE_GATED_GATED_ENGINE_H_
#define ATTND_ENGINE_GATED_GATED_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/linear/fold.h"
#include "engine/linear/linear_family_engine.h"
#include "engine/linear/linear_layer.h"
#include "engine/linear/linear_state.h"

namespace attnd::engine {

class GatedEngine final : public LinearFamilyEngine<LinearState> {
 public:
  explicit GatedEngine(LinearLayer layer) : LinearFamilyEngine(std::move(layer)) {}

  TailLayout tail_layout() const override;
  bool mergeable() const override { return false; }
  bool has_denominators() const override { return !layer().config.update.delta; }

  void EncodeTail(const SealedState& sealed, const TailRows& rows, Tail& tail,
                  Scratch& scratch) const override;
  absl::Status Seal(SealedState& state, std::int64_t sealed_tokens, std::span<const Block> blocks,
                    Scratch& scratch) const override;
  absl::Status CheckTail(const SealedState& state, const TailView& tail,
                         Scratch& scratch) const override;
  absl::Status Save(const SealedState& state, ByteWriter& writer) const override;
  absl::StatusOr<std::shared_ptr<SealedState>> Load(std::int64_t sealed_tokens,
                                                    ByteReader& reader) const override;
  std::unique_ptr<AttendPlan> NewPlan() const override;

  // Totals are multiplied before they are added to.
  std::int64_t seal_passes() const override { return 2; }

 private:
  // One head's rows of a block, features and updates made.
  struct Rows {
    std::int64_t count = 0;
    RowMask valid = 0;
    const float* log_decays = nullptr;
    const float* features = nullptr;  // [count, features]
    const float* values = nullptr;    // values or updates
    std::int64_t value_stride = 0;
  };
  // The rows as they are folded, and what the totals are multiplied by before, per feature.
  HeadRows Decayed(const Rows& rows, std::int64_t head, double* factors, Scratch& scratch) const;
  bool Fold(const Rows& rows, std::int64_t head, LinearState& state, Scratch& scratch) const;
  bool CanFold(const Rows& rows, std::int64_t head, const LinearState& state,
               Scratch& scratch) const;
  Rows EncodedRows(const Tail& tail, std::int64_t count, RowMask valid, std::int64_t head) const;
  Rows EncodeBlock(const Block& block, std::int64_t position, std::int64_t head,
                   const LinearState& state, Scratch& scratch) const;
};

// Requires a valid shape and a rule that is not additive. InvalidArgument as MakeLinearLayer(), and
// where parts of the rule do not fit each other, the map or the layer.
absl::StatusOr<std::unique_ptr<const Engine>> MakeGatedEngine(const LayerShape& shape,
                                                              const LinearConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_GATED_GATED_ENGINE_H_
