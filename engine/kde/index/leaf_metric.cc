#include "engine/kde/index/leaf_metric.h"

#include <algorithm>
#include <cmath>

#include "engine/gemm.h"
#include "engine/simd/maps.h"
#include "engine/simd/nearest.h"

namespace attnd::engine {
namespace {
constexpr std::int64_t kKeysPerComponent = 8;
constexpr std::int64_t kLeavesPerCovariance = 4;
}  // namespace

LeafMetric::LeafMetric(const BlockLayout& layout, const float* centre)
    : layout_(layout),
      padded_key_dim_(RoundUp(layout.key_dim, kGemmColumnMultiple)),
      centre_(layout.key_dim),
      covariance_(layout.key_dim * padded_key_dim_),
      cross_covariance_(layout.key_dim * layout.padded_value_dim) {
  std::copy_n(centre, layout.key_dim, centre_.data());
}

bool LeafMetric::Enough(const BlockLayout& layout, std::int64_t keys) {
  return keys >= kKeysPerComponent * layout.key_dim;
}

std::int64_t LeafMetric::Bytes(const BlockLayout& layout) {
  return static_cast<std::int64_t>(sizeof(LeafMetric)) +
         layout.key_dim *
             (RoundUp(layout.key_dim, kGemmColumnMultiple) + layout.padded_value_dim + 1) *
             static_cast<std::int64_t>(sizeof(float));
}

void LeafMetric::AddLeaf(const LeafMeans& leaf, Scratch& scratch) {
  const Scratch::Frame frame(scratch);
  const std::int64_t width = padded_key_dim_;
  const std::int64_t columns = layout_.padded_value_dim;
  float* keys = scratch.Take(kBlockTokens * width);
  float* values = scratch.Take(kBlockTokens * columns);
  CentreLeaf(layout_, leaf, width, keys, values);
  float* product = scratch.Take(width * std::max(width, columns));
  if (added_++ % kLeavesPerCovariance == 0) {
    GemmTN(width, width, kBlockTokens, keys, width, keys, width, /*accumulate=*/false, product,
           width);
    AddRow(product, covariance_.data(), layout_.key_dim * width);
  }
  GemmTN(width, columns, kBlockTokens, keys, width, values, columns, /*accumulate=*/false, product,
         columns);
  AddRow(product, cross_covariance_.data(), layout_.key_dim * columns);
}

void LeafMetric::Finish(std::int64_t leaves) {
  const std::int64_t d = layout_.key_dim;
  float* covariance = covariance_.data();
  float* cross = cross_covariance_.data();
  double trace = 0.0;
  for (std::int64_t c = 0; c < d; ++c) {
    trace += static_cast<double>(covariance[c * padded_key_dim_ + c]);
  }
  const double factor = static_cast<double>(d) / trace;
  for (std::int64_t i = 0; i < covariance_.size(); ++i) {
    covariance[i] = static_cast<float>(static_cast<double>(covariance[i]) * factor);
  }
  for (std::int64_t i = 0; i < cross_covariance_.size(); ++i) {
    cross[i] = static_cast<float>(static_cast<double>(cross[i]) / static_cast<double>(leaves));
  }
  if (!(trace > 0.0) || !AllFinite(covariance, covariance_.size())) {
    std::fill_n(covariance, covariance_.size(), 0.0F);
    for (std::int64_t c = 0; c < d; ++c) covariance[c * padded_key_dim_ + c] = 1.0F;
  }
  if (!AllFinite(cross, cross_covariance_.size())) {
    std::fill_n(cross, cross_covariance_.size(), 0.0F);
  }
  for (std::int64_t i = 0; i < cross_covariance_.size(); ++i) {
    cross_square_ += static_cast<double>(cross[i]) * static_cast<double>(cross[i]);
  }
}

double LeafMetric::Along(const float* key, const float* value) const {
  double product = 0.0;
  for (std::int64_t c = 0; c < layout_.key_dim; ++c) {
    const float* row = cross_covariance_.data() + c * layout_.padded_value_dim;
    product += static_cast<double>(key[c]) *
               static_cast<double>(Dot(row, value, layout_.padded_value_dim));
  }
  const double multiple = product / cross_square_;
  return std::isfinite(multiple) ? multiple : 0.0;
}

float LeafMetric::Slope(const LeafMeans& leaf, Scratch& scratch) const {
  const Scratch::Frame frame(scratch);
  const std::int64_t columns = layout_.padded_value_dim;
  float* keys = scratch.Take(kBlockTokens * padded_key_dim_);
  float* values = scratch.Take(kBlockTokens * columns);
  float* followed = scratch.Take(kBlockTokens * columns);
  CentreLeaf(layout_, leaf, padded_key_dim_, keys, values);
  GemmNN(kBlockTokens, columns, layout_.key_dim, keys, padded_key_dim_, cross_covariance_.data(),
         columns, /*accumulate=*/false, followed, columns);
  double product = 0.0;
  for (std::int64_t j = 0; j < kBlockTokens; ++j) {
    product += static_cast<double>(Dot(followed + j * columns, values + j * columns, columns));
  }
  const double slope = product / cross_square_;
  return std::isfinite(slope) ? static_cast<float>(slope) : 0.0F;
}

}  // namespace attnd::engine
