// The sealed state of linear attention: per kv-head the context summary S = phi(K)^T V [c x d_v]
// and the key summary Z = phi(K)^T 1 [c] over the unmasked tokens of complete blocks.
//
// LinearSummary is what answers are computed from: S and Z in f32, laid out so that one product
// answers numerator and denominator. LinearState, over all tokens, adds the f64 totals to which the
// f32 sums of each block are added and whose rounding the summary is (f32 alone drifts: 1e-4 of the
// output after 4 million tokens, and stops counting where an increment is below half an ulp). The
// state of a sliding window is in window_state.h.
//
// Not synchronised: one thread owns a state until it is published, then nobody changes it.
#ifndef ATTND_ENGINE_LINEAR_LINEAR_STATE_H_
#define ATTND_ENGINE_LINEAR_LINEAR_STATE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/aligned_buffer.h"
#include "engine/block.h"
#include "engine/engine.h"
#include "engine/linear/row_exponents.h"
#include "engine/tensor.h"

namespace attnd::engine {

// Sizes of one head's arrays, padded as the products need them. Padding holds zeros.
struct LinearDims {
  LinearDims(std::int64_t feature_dim, std::int64_t value_dim_in)
      : features(RoundUp(feature_dim, 16)),
        value_dim(value_dim_in),
        value_columns(RoundUp(value_dim_in, 16)),
        summary_columns(RoundUp(value_dim_in + 1, 16)) {}

  std::int64_t totals() const { return features * (value_columns + 1); }
  std::int64_t summary() const { return features * summary_columns; }

  std::int64_t features;         // c, rounded up
  std::int64_t value_dim;        // d_v
  std::int64_t value_columns;    // d_v, rounded up: columns of S as it is summed
  std::int64_t summary_columns;  // d_v + 1, rounded up: columns of [S | Z]
};

// Calls use(i, feature) for every number of one head's totals and the feature that it belongs to.
template <typename Use>
void ForTotals(const LinearDims& dims, const Use& use) {
  for (std::int64_t a = 0; a < dims.features; ++a) {
    for (std::int64_t j = 0; j < dims.value_columns; ++j) use(a * dims.value_columns + j, a);
    use(dims.features * dims.value_columns + a, a);
  }
}

class LinearSummary : public SealedState {
 public:
  LinearSummary& operator=(const LinearSummary&) = delete;

  // f32: [features x summary_columns], column d_v is Z. Not to be asked for where unmasked() is 0.
  float* summary(std::int64_t head) { return summary_.data() + head * dims_.summary(); }
  const float* summary(std::int64_t head) const { return summary_.data() + head * dims_.summary(); }

  // Of scaled features: what a head's summary is times 2 to the power of. kNoExponent without
  // unmasked tokens, and with features that are not scaled.
  std::int32_t& exponent(std::int64_t head) { return exponents_[static_cast<std::size_t>(head)]; }
  std::int32_t exponent(std::int64_t head) const {
    return exponents_[static_cast<std::size_t>(head)];
  }

  // Unmasked tokens in the summary.
  std::int64_t unmasked() const { return unmasked_; }

 protected:
  // Without tokens, and without memory for sums: a session of many wide layers costs nothing before
  // its layers hold a complete block.
  LinearSummary(std::int64_t kv_heads, const LinearDims& dims)
      : dims_(dims), exponents_(static_cast<std::size_t>(kv_heads), kNoExponent) {}
  LinearSummary(const LinearSummary& other)
      : SealedState(other),
        dims_(other.dims_),
        summary_(AlignedBuffer<float>::CopyOf(other.summary_)),
        exponents_(other.exponents_),
        unmasked_(other.unmasked_) {}

  const LinearDims& dims() const { return dims_; }
  std::int64_t kv_heads() const { return static_cast<std::int64_t>(exponents_.size()); }
  bool has_summary() const { return summary_.size() > 0; }
  void AllocateSummary() { summary_ = AlignedBuffer<float>(kv_heads() * dims_.summary()); }
  void set_unmasked(std::int64_t tokens) { unmasked_ = tokens; }
  // Of the arrays.
  std::int64_t summary_bytes() const {
    return static_cast<std::int64_t>(exponents_.size() * sizeof(std::int32_t)) + summary_.bytes();
  }

 private:
  LinearDims dims_;
  AlignedBuffer<float> summary_;
  std::vector<std::int32_t> exponents_;
  std::int64_t unmasked_ = 0;
};

class LinearState final : public LinearSummary {
 public:
  LinearState(std::int64_t kv_heads, const LinearDims& dims)
      : LinearSummary(kv_heads, dims), bounds_(static_cast<std::size_t>(kv_heads), 0.0) {}
  LinearState(const LinearState& other)
      : LinearSummary(other),
        totals_(AlignedBuffer<double>::CopyOf(other.totals_)),
        bounds_(other.bounds_) {}
  LinearState& operator=(const LinearState&) = delete;

  std::int64_t bytes() const override {
    return static_cast<std::int64_t>(sizeof(*this) + bounds_.size() * sizeof(double)) +
           totals_.bytes() + summary_bytes();
  }

  // Of a state with sums before it is made.
  static std::int64_t Bytes(std::int64_t kv_heads, const LinearDims& dims) {
    constexpr std::int64_t kPerHead = sizeof(double) + sizeof(std::int32_t);
    return static_cast<std::int64_t>(sizeof(LinearState)) +
           kv_heads * (dims.totals() * 8 + dims.summary() * 4 + kPerHead);
  }

  // Whether the arrays below exist; before AllocateSums() every sum is zero and none may be asked
  // for.
  bool has_sums() const { return totals_.size() > 0; }
  void AllocateSums() {
    totals_ = AlignedBuffer<double>(kv_heads() * dims().totals());
    AllocateSummary();
  }

  // f64: S [features x value_columns], then Z [features], times 2 to the power of exponent().
  double* totals(std::int64_t head) { return totals_.data() + head * dims().totals(); }
  const double* totals(std::int64_t head) const { return totals_.data() + head * dims().totals(); }

  // At least the largest magnitude among a head's totals.
  double& bound(std::int64_t head) { return bounds_[static_cast<std::size_t>(head)]; }
  double bound(std::int64_t head) const { return bounds_[static_cast<std::size_t>(head)]; }

  void AddUnmasked(std::int64_t tokens) { set_unmasked(unmasked() + tokens); }

 private:
  AlignedBuffer<double> totals_;
  std::vector<double> bounds_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_LINEAR_STATE_H_
