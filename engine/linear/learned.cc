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

// All become NaN where a number is not finite. x may be features.
void Softmax(const float* x, std::int64_t n, float* features) {
  ExpShifted(x, MaxOf(x, n), 0.0F, features, n);
  ScaleRow(features, 1.0F / SumOf(features, n), features, n);
}

// Rows of the next product where `count` are left. A tile of queries holds rows of several heads,
// each with weights of its own, so that counts are no row counts of engine/gemm.h: with 8 query
// heads to a kv-head they are 24. Padded to 64 (5.3 us for d = m = 64, where 16 rows take 1.5 and 4
// take 0.55) an Attend took a quarter longer.
std::int64_t PieceRows(std::int64_t count) {
  constexpr std::int64_t kFew = 8;  // two products of 4 rows take less than one of 16
  if (count <= kFew) return kGemmRowBuckets[0];
  std::int64_t rows = kGemmRowBuckets[1];
  for (const std::int64_t bucket : kGemmRowBuckets) {
    if (rows < bucket && bucket <= count) rows = bucket;
  }
  return rows;
}

// Rows of all products for `count` of them.
std::int64_t AllPieces(std::int64_t count) {
  std::int64_t rows = 0;
  while (rows < count) rows += PieceRows(count - rows);
  return rows;
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

  // W_h x of the rows, [rows, columns()]. Valid as long as the scratch frame.
  float* Project(const MapRows& rows, const MapWeights::Head& head, Scratch& scratch) const {
    const std::int64_t d = shape().key_dim;
    const std::int64_t columns = weights_->columns();
    const std::int64_t padded = AllPieces(rows.count);
    const float* x = rows.rows;
    if (rows.count < padded || rows.stride != d) {
      float* copy = scratch.Take(padded * d);
      for (std::int64_t i = 0; i < rows.count; ++i) {
        std::copy_n(rows.rows + i * rows.stride, d, copy + i * d);
      }
      std::fill(copy + rows.count * d, copy + padded * d, 0.0F);
      x = copy;
    }
    float* y = scratch.Take(padded * columns);
    for (std::int64_t i = 0, piece = 0; i < rows.count; i += piece) {
      piece = PieceRows(rows.count - i);
      GemmNN(piece, columns, d, x + i * d, d, head.weights.data(), columns, /*accumulate=*/false,
             y + i * columns, columns);
    }
    return y;
  }

  // Up to kGemmMaxRows rows.
  void Map(const MapRows& rows, const MapWeights::Head& head, const MapFeatures& out,
           Scratch& scratch) const {
    const Scratch::Frame frame(scratch);
    const std::int64_t columns = weights_->columns();
    float* y = Project(rows, head, scratch);
    for (std::int64_t i = 0; i < rows.count; ++i) {
      float* row = y + i * columns;
      if (head.bias.size() > 0) AddRow(head.bias.data(), row, columns);
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
        Softmax(y, m, features);
        return;
      case MapActivation::kHedgehog:
        Softmax(y, m, features);
        ScaleRow(y, -1.0F, features + m, m);
        Softmax(features + m, m, features + m);
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
