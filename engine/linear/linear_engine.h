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

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/linear_layer.h"
#include "engine/linear/linear_state.h"

namespace attnd::engine {

// The base of the engine with a sliding window, which has another sealed state.
class LinearEngine : public Engine {
 public:
  explicit LinearEngine(LinearLayer layer) : layer_(std::move(layer)) {}

  const char* name() const override { return "linear"; }
  const LayerShape& shape() const override { return layer_.shape; }
  const LinearLayer& layer() const { return layer_; }
  const FeatureMap* feature_map() const override { return layer_.map.get(); }

  // Features are c rounded up to a multiple of 16; those beyond c are zeros.
  TailLayout tail_layout() const override {
    return {.features = layer_.dims.features, .exponents = layer_.map->scaled() ? 1 : 0};
  }
  std::int64_t map_dim() const override { return layer_.map->feature_dim(); }
  std::int64_t map_operations() const override { return layer_.map->operations(); }
  bool scaled_features() const override { return layer_.map->scaled(); }
  bool has_denominators() const override { return true; }
  PositionUse position_use() const override {
    return layer_.map->positional() ? PositionUse::kRequired : PositionUse::kNone;
  }

  // Stores f32 as it comes.
  void RoundToStorage(float*, std::int64_t) const override {}
  bool rounds_storage() const override { return false; }

  void EncodeTail(const SealedState& sealed, const TailRows& rows, Tail& tail,
                  Scratch& scratch) const override;
  std::shared_ptr<SealedState> NewState() const override;
  std::shared_ptr<SealedState> Clone(const SealedState& state) const override;

  // The bits of the state do not depend on how blocks are spread over calls. Where it fails, the
  // message names the kv-head.
  absl::Status Seal(SealedState& state, std::int64_t sealed_tokens, std::span<const Block> blocks,
                    Scratch& scratch) const override;
  absl::Status CheckTail(const SealedState& state, const TailView& tail,
                         Scratch& scratch) const override;
  std::unique_ptr<AttendPlan> NewPlan() const override;
  std::int64_t PlanBytes(std::int64_t, std::int64_t, std::int64_t) const override { return 0; }

  // A sealed state and an open block. Per token nothing: S and Z do not grow.
  std::int64_t fixed_bytes() const override;
  std::int64_t bytes_per_token() const override { return 0; }
  std::int64_t AppendBytes(std::int64_t, std::int64_t) const override { return fixed_bytes(); }

 private:
  const LinearLayer layer_;
};

// Requires a valid shape (MakeEngine checks it). InvalidArgument as MakeLinearLayer().
absl::StatusOr<std::unique_ptr<const Engine>> MakeLinearEngine(const LayerShape& shape,
                                                               const LinearConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_LINEAR_ENGINE_H_
