// Efficient Attention (Shen et al. 2021, arXiv:1812.01243): queries are a softmax over their d
// features, keys a softmax over the sequence in each feature column,
//   out = sum_a softmax(scale q)_a (sum_j exp(k_ja) v_j) / Z_a,  Z_a = sum_j exp(k_ja),
// over the visible unmasked tokens j, so c = d. A token sees what a Step's cut lets it see: the
// softmax over the sequence is one over the prefix. In form it is linear attention whose query
// features are divided by Z, column by column.
//
// Denominator: a query has none. The weights of a row's tokens are positive and add up to 1 by
// construction, so no guard is needed and none may be set; normalisation cannot be turned off.
//
// Range: exponentials are held with a power of two per column (key_columns.h), so any finite key
// may come, in any order; an answer is scaled by the tokens that it sees. Against the definition in
// f64 an output is off by about 1e-6 of the largest value. What overflows is sums of values (values
// beyond 1e20 or so together with keys beyond 20): they are refused as by the linear engine, and a
// query row whose scaled numbers overflow gets zeros and the flag.
//
// Merged: states can be added, column by column (efficient_state.h); answers cannot, because every
// column of one is divided by a sum over all tokens. Truncated: only by going back to a state that
// was kept.
//
// Immutable; any thread.
#ifndef ATTND_ENGINE_EFFICIENT_EFFICIENT_ENGINE_H_
#define ATTND_ENGINE_EFFICIENT_EFFICIENT_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/efficient/efficient_state.h"
#include "engine/engine.h"
#include "engine/engine_config.h"
#include "engine/linear/linear_family_engine.h"
#include "engine/linear/linear_layer.h"

namespace attnd::engine {

// FeatureMapConfig::name of this engine.
inline constexpr char kEfficientName[] = "efficient";

class EfficientEngine final : public LinearFamilyEngine<EfficientState> {
 public:
  // Of the layer the map is null: features of keys and queries are not of one kind.
  explicit EfficientEngine(LinearLayer layer) : LinearFamilyEngine(std::move(layer)) {}

  // Mantissas and steps, c rounded up to a multiple of 16 of each.
  TailLayout tail_layout() const override {
    return {.features = layer().dims.features, .exponents = layer().dims.features};
  }
  bool mergeable() const override { return false; }

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

// Requires a valid shape (MakeEngine checks it). InvalidArgument where the layer would have more
// than kMaxSums sums, a parameter of a map or an update rule is set, the layer is not normalised,
// or the guard is not at its default.
absl::StatusOr<std::unique_ptr<const Engine>> MakeEfficientEngine(const LayerShape& shape,
                                                                  const LinearConfig& config);

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EFFICIENT_EFFICIENT_ENGINE_H_
