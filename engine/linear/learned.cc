// learned: a linear map of each head with weights of its own, learned to make linear attention
// follow softmax attention, then an activation. With y = W_h x + b_h, W_h [m, d], of the kv-head h
// for keys and of the query head h for queries (the two differ):
//   relu      phi(x) = max(y, 0), c = m (T2R; Kasai et al. 2021, arXiv:2103.13076, eq. 5)
//   exp       phi(x) = exp(y), c = m
//   softmax   phi(x) = softmax(y) over the m features, c = m
//   hedgehog  phi(x) = [softmax(y), softmax(-y)], c = 2 m (Hedgehog; Zhang et al. 2024,
//             arXiv:2402.04347, with the two softmaxes of its authors' code and not one softmax
//             over both halves, which is another kernel; without that code's lower bound of 1e-12)
// Query rows come multiplied by the layer's scale, so the bias is not.
//
// Denominator: not negative for relu, and 0 where no feature is active on both sides; positive for
// the others. exp: features come scaled by a power of two per row, which is kept and so does not
// change the kernel (a maximum subtracted from a key would); softmax and hedgehog are bounded by 1.
// In all three a feature below exp(-87) of its row's largest is 0, so rows that peak at different
// features by more than that have a kernel of 0, which the guard sees.
// Error against the definition with f64: y has the rounding of a sum of d products, about 1e-7 of
// sum |w x|, which exp turns into that relative error of a feature; everything else about 1e-6.
// Overflow: rows whose y leaves f32 get infinities (relu) or NaNs; exp also where |y|
// exceeds 1.8e8.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/gemm.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/log_features.h"
#include "engine/linear/map_weights.h"
#include "engine/simd/maps.h"

namespace attnd::engine {
namespace {

// Number j in lane j mod 16, then the lanes in halves: the same bits on every instruction set.
float LaneSum(const float* x, std::int64_t n) {
  constexpr std::int64_t kLanes = 16;
  std::array<float, kLanes> lanes = {};
  for (std::int64_t first = 0; first < n; first += kLanes) {
    const std::int64_t count = std::min(kLanes, n - first);
    for (std::int64_t l = 0; l < count; ++l) lanes[static_cast<std::size_t>(l)] += x[first + l];
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// In place. All become NaN where a number is not finite.
void Softmax(float* x, std::int64_t n) {
  ExpShifted(x, MaxOf(x, n), 0.0F, x, n);
  ScaleRow(x, 1.0F / LaneSum(x, n), x, n);
}

class LearnedMap final : public FeatureMap {
 public:
  explicit LearnedMap(std::shared_ptr<const MapWeights> weights) : weights_(std::move(weights)) {}

  std::int64_t feature_dim() const override {
    return activation() == MapActivation::kHedgehog ? 2 * shape().features : shape().features;
  }
  KernelSign sign() const override {
    return activation() == MapActivation::kRelu ? KernelSign::kNonNegative : KernelSign::kPositive;
  }
  bool scaled() const override { return activation() == MapActivation::kExp; }
  bool per_head() const override { return true; }
  std::int64_t operations() const override { return shape().features * shape().key_dim; }

  void MapKeys(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const override {
    Map(rows, weights_->key_head(rows.head), out, scratch);
  }
  void MapQueries(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const override {
    Map(rows, weights_->query_head(rows.head), out, scratch);
  }

 private:
  const MapWeightsShape& shape() const { return weights_->shape(); }
  MapActivation activation() const { return shape().activation; }

  // Up to kGemmMaxRows rows.
  void Map(const MapRows& rows, const MapWeights::Head& head, const MapFeatures& out,
           Scratch& scratch) const {
    const Scratch::Frame frame(scratch);
    const std::int64_t d = shape().key_dim;
    const std::int64_t columns = weights_->columns();
    const std::int64_t padded = GemmPaddedRows(rows.count);
    float* x = scratch.Take(padded * d);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      std::copy_n(rows.rows + i * rows.stride, d, x + i * d);
    }
    std::fill(x + rows.count * d, x + padded * d, 0.0F);
    float* y = scratch.Take(padded * columns);
    GemmNN(padded, columns, d, x, d, head.weights.data(), columns, /*accumulate=*/false, y,
           columns);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      float* row = y + i * columns;
      if (head.bias.size() > 0) {
        for (std::int64_t j = 0; j < columns; ++j) row[j] += head.bias.data()[j];
      }
      Activate(row, out.features + i * out.stride,
               out.exponents == nullptr ? nullptr : out.exponents + i);
    }
  }

  void Activate(const float* y, float* features, std::int32_t* exponent) const {
    const std::int64_t m = shape().features;
    switch (activation()) {
      case MapActivation::kRelu:
        Relu(y, 0.0F, features, m);
        return;
      case MapActivation::kExp:
        std::copy_n(y, m, features);
        *exponent = ExpFeatures(0.0, features, m);
        return;
      case MapActivation::kSoftmax:
        std::copy_n(y, m, features);
        Softmax(features, m);
        return;
      case MapActivation::kHedgehog:
        std::copy_n(y, m, features);
        ScaleRow(y, -1.0F, features + m, m);
        Softmax(features, m);
        Softmax(features + m, m);
        return;
    }
  }

  std::shared_ptr<const MapWeights> weights_;
};

absl::Status CheckEqual(const char* field, std::int64_t weights, std::int64_t layer) {
  if (weights == layer) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("feature_map.weights is for ", field, " ", weights, "; the layer's is ", layer));
}

}  // namespace

FeatureMapOr MakeLearned(const FeatureMapConfig& config, const LayerShape& shape) {
  if (absl::Status status = RejectParameters(config, kWeights); !status.ok()) return status;
  if (config.weights == nullptr) {
    return absl::InvalidArgumentError("feature_map.weights is not set; it must be for learned");
  }
  const MapWeightsShape& weights = config.weights->shape();
  absl::Status status = CheckEqual("kv_heads", weights.kv_heads, shape.kv_heads);
  status.Update(CheckEqual("query_heads", weights.query_heads, shape.query_heads));
  status.Update(CheckEqual("key_dim", weights.key_dim, shape.key_dim));
  if (!status.ok()) return status;
  return std::make_unique<LearnedMap>(config.weights);
}

}  // namespace attnd::engine
