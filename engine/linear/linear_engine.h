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

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/linear_state.h"

namespace attnd::engine {

class LinearEngine final : public Engine {
 public:
  LinearEngine(const LayerShape& shape, const LinearConfig& config,
               std::unique_ptr<const FeatureMap> map);

  const char* name() const override { return "linear"; }
  const LayerShape& shape() const override { return shape_; }
  const LinearConfig& config() const { return config_; }
  const FeatureMap& map() const { return *map_; }
  const LinearDims& dims() const { return dims_; }

  // c rounded up to a multiple of 16; the features beyond c are zeros.
  std::int64_t feature_dim() const override { return dims_.features; }
  std::int64_t map_dim() const override { return map_->feature_dim(); }
  std::int64_t map_operations() const override { return map_->operations(); }
  bool scaled_features() const override { return map_->scaled(); }
  bool positional() const override { return map_->positional(); }

  // Stores f32 as it comes.
  void RoundToStorage(float*, std::int64_t) const override {}
  bool rounds_storage() const override { return false; }

  void EncodeKeys(const KeyRows& rows, float* features, std::int32_t* exponents,
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
  // Features of the rows' keys of one head, [count x features]; those of masked tokens are zeros.
  void EncodeHead(const KeyRows& rows, std::int64_t head, float* features, std::int32_t* exponents,
                  Scratch& scratch) const;

  LayerShape shape_;
  LinearConfig config_;
  std::unique_ptr<const FeatureMap> map_;
  LinearDims dims_;
};

// Requires a valid shape (MakeEngine checks it). InvalidArgument where a field of the configuration
// is out of range, or the map has a signed denominator and the layer is normalised.
absl::StatusOr<std::unique_ptr<const Engine>> MakeLinearEngine(const LayerShape& shape,
                                                               const LinearConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_LINEAR_ENGINE_H_
