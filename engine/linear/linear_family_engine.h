// What the engines of the linear family are alike in: they answer from sums over a layer's tokens
// and from the open block, so that a sealed state and an open block are all the memory that they
// keep, however long the context is; they store f32 as it comes; and what they say of their feature
// map is what the layer's map says of itself.
//
// Left to each engine: what the sums are (EncodeTail, Seal, CheckTail), how they are answered from
// (NewPlan), and the layout of the open block. One whose memory does grow with tokens, a window,
// overrides what is said of memory too.
//
// State is the engine's sealed state: constructible from (kv_heads, LinearDims), and without memory
// for sums then; copyable; with State::Bytes(kv_heads, LinearDims), the memory of one with sums.
//
// Thread safety: immutable; any thread. Ownership: an engine owns its layer and the layer's map;
// the states that it makes belong to the caller, and do not refer to it. Invariant: every
// SealedState that an engine is given was made by it. Failure: making a state and copying one may
// throw std::bad_alloc, as engine.h says; nothing else here fails.
#ifndef ATTND_ENGINE_LINEAR_LINEAR_FAMILY_ENGINE_H_
#define ATTND_ENGINE_LINEAR_LINEAR_FAMILY_ENGINE_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "engine/block.h"
#include "engine/engine.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/linear_layer.h"

namespace attnd::engine {

template <typename State>
class LinearFamilyEngine : public Engine {
 public:
  const char* name() const override { return "linear"; }
  const LayerShape& shape() const override { return layer_.shape; }
  const LinearLayer& layer() const { return layer_; }

  // As the map says; of a layer without one, as of an engine that reads the keys themselves.
  const FeatureMap* feature_map() const override { return layer_.map.get(); }
  std::int64_t map_dim() const override {
    return layer_.map == nullptr ? Engine::map_dim() : layer_.map->feature_dim();
  }
  std::int64_t map_operations() const override {
    return layer_.map == nullptr ? Engine::map_operations() : layer_.map->operations();
  }
  PositionUse position_use() const override {
    return layer_.map != nullptr && layer_.map->positional() ? PositionUse::kRequired
                                                             : PositionUse::kNone;
  }

  // Stores f32 as it comes.
  void RoundToStorage(float*, std::int64_t) const override {}
  bool rounds_storage() const override { return false; }

  std::shared_ptr<SealedState> NewState() const override {
    return std::make_shared<State>(layer_.shape.kv_heads, layer_.dims);
  }
  std::shared_ptr<SealedState> Clone(const SealedState& state) const override {
    return std::make_shared<State>(Own(state));
  }

  std::int64_t PlanBytes(std::int64_t, std::int64_t, std::int64_t) const override { return 0; }

  // A sealed state and an open block. Per token nothing: the sums do not grow.
  std::int64_t fixed_bytes() const override {
    return State::Bytes(layer_.shape.kv_heads, layer_.dims) +
           Tail::Bytes(layer_.shape, tail_layout());
  }
  std::int64_t bytes_per_token() const override { return 0; }
  std::int64_t AppendBytes(std::int64_t, std::int64_t) const override { return fixed_bytes(); }

 protected:
  explicit LinearFamilyEngine(LinearLayer layer) : layer_(std::move(layer)) {}

  // The state that this engine made, as what it is.
  static State& Own(SealedState& state) { return static_cast<State&>(state); }
  static const State& Own(const SealedState& state) { return static_cast<const State&>(state); }

 private:
  const LinearLayer layer_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_LINEAR_FAMILY_ENGINE_H_
