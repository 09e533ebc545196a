// The sealed state of Efficient Attention: per kv-head S = exp(K)^T V [c x d_v] and Z = exp(K)^T 1
// [c] over all unmasked tokens of complete blocks, as linear_state.h holds them, in units of
// 2^(64 s) for steps s of each column (key_columns.h).
//
// States over different tokens can be added: a column's sums, brought to the larger steps. Tokens
// cannot be taken out of one (a column's largest may have been among them, and what underflowed
// beside it is gone): an earlier position is reached from a state that was kept, not by
// subtraction.
//
// Not synchronised: one thread owns a state until it is published, then nobody changes it.
#ifndef ATTND_ENGINE_EFFICIENT_EFFICIENT_STATE_H_
#define ATTND_ENGINE_EFFICIENT_EFFICIENT_STATE_H_

#include <algorithm>
#include <cstdint>

#include "engine/aligned_buffer.h"
#include "engine/efficient/key_columns.h"
#include "engine/engine.h"
#include "engine/linear/linear_state.h"

namespace attnd::engine {

class EfficientState final : public SealedState {
 public:
  // Without tokens, and without memory for sums.
  EfficientState(std::int64_t kv_heads, const LinearDims& dims)
      : kv_heads_(kv_heads), columns_(dims.features), sums_(kv_heads, dims) {}
  EfficientState(const EfficientState& other)
      : SealedState(other),
        kv_heads_(other.kv_heads_),
        columns_(other.columns_),
        sums_(other.sums_),
        steps_(AlignedBuffer<std::int32_t>::CopyOf(other.steps_)) {}
  EfficientState& operator=(const EfficientState&) = delete;

  std::int64_t bytes() const override {
    return static_cast<std::int64_t>(sizeof(*this) - sizeof(sums_)) + sums_.bytes() +
           steps_.bytes();
  }
  // Of a state with sums before it is made.
  static std::int64_t Bytes(std::int64_t kv_heads, const LinearDims& dims) {
    constexpr auto kOwn = static_cast<std::int64_t>(sizeof(EfficientState) - sizeof(LinearState));
    return kOwn + LinearState::Bytes(kv_heads, dims) +
           kv_heads * dims.features * static_cast<std::int64_t>(sizeof(std::int32_t));
  }

  // S and Z, and how many unmasked tokens they hold.
  LinearState& sums() { return sums_; }
  const LinearState& sums() const { return sums_; }

  bool has_sums() const { return sums_.has_sums(); }
  void AllocateSums() {
    sums_.AllocateSums();
    AllocateSteps();
  }
  // For one whose sums() have been allocated by themselves.
  void AllocateSteps() {
    steps_ = AlignedBuffer<std::int32_t>::Uninitialized(kv_heads_ * columns_);
    std::fill_n(steps_.data(), steps_.size(), kNoSteps);
  }

  // Of a head's columns; kNoSteps in all before its first unmasked token. Requires has_sums().
  std::int32_t* steps(std::int64_t head) { return steps_.data() + head * columns_; }
  const std::int32_t* steps(std::int64_t head) const { return steps_.data() + head * columns_; }

  // The same; null before the head's first unmasked token.
  const std::int32_t* known_steps(std::int64_t head) const {
    if (!has_sums()) return nullptr;
    const std::int32_t* steps = steps_.data() + head * columns_;
    return *steps == kNoSteps ? nullptr : steps;
  }

 private:
  std::int64_t kv_heads_;
  std::int64_t columns_;
  LinearState sums_;
  AlignedBuffer<std::int32_t> steps_;  // [kv_heads, columns]
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_EFFICIENT_EFFICIENT_STATE_H_
