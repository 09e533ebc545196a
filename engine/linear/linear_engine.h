// Linear attention: out = phi(q) S / phi(q) Z with S = phi(K)^T V and Z = phi(K)^T 1 per kv-head
// (Katharopoulos et al. 2020, arXiv:2006.16236), so that a query costs the same however long the
// context is.
//
// Complete blocks are folded into a LinearState; the open block is answered in score form,
// phi(q) phi(K)^T times [V | 1] (the chunk-wise causal form), see attend_plan.h. Masked tokens get
// zero features, after the map: phi(0) is not 0.
//
// Immutable; any thread.
#ifndef ATTND_ENGINE_LINEAR_LINEAR_ENGINE_H_
#define ATTND_ENGINE_LINEAR_LINEAR_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/linear/linear_family_engine.h"
#include "engine/linear/linear_layer.h"
#include "engine/linear/linear_state.h"

namespace attnd::engine {

// The base of the engine with a sliding window, which has another sealed state.
class LinearEngine : public LinearFamilyEngine<LinearState> {
 public:
  explicit LinearEngine(LinearLayer layer) : LinearFamilyEngine(std::move(layer)) {}

  // Features are c rounded up to a multiple of 16; those beyond c are zeros.
  TailLayout tail_layout() const override {
    return {.features = layer().dims.features, .exponents = scaled_features() ? 1 : 0};
  }
  bool scaled_features() const override { return layer().map->scaled(); }
  bool has_denominators() const override { return true; }

  void EncodeTail(const SealedState& sealed, const TailRows& rows, Tail& tail,
                  Scratch& scratch) const override;

  // The bits of the state do not depend on how blocks are spread over calls. Where it fails, the
  // message names the kv-head.
  absl::Status Seal(SealedState& state, std::int64_t sealed_tokens, std::span<const Block> blocks,
                    Scratch& scratch) const override;
  absl::Status CheckTail(const SealedState& state, const TailView& tail,
                         Scratch& scratch) const override;
  absl::Status Save(const SealedState& state, ByteWriter& writer) const override;
  absl::StatusOr<std::shared_ptr<SealedState>> Load(std::int64_t sealed_tokens,
                                                    ByteReader& reader) const override;
  std::unique_ptr<AttendPlan> NewPlan() const override;
};

// Requires a valid shape (MakeEngine checks it). InvalidArgument as MakeLinearLayer().
absl::StatusOr<std::unique_ptr<const Engine>> MakeLinearEngine(const LayerShape& shape,
                                                               const LinearConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_LINEAR_ENGINE_H_
