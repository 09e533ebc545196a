// What the leaves of an index have in common: the shape of their key clouds, and how values follow
// keys within them.
//
//   q0: the centre that leaves are summarised about (leaf_summary.h), the mean of the keys, asked
//   as
//      queries;
//   P: the pooled covariance of keys within leaves over its mean variance, so that a leaf of
//      variance v (per component) varies by v (q - q0)^T P (q - q0) along q - q0;
//   G: the mean covariance of keys and values within leaves, of which each leaf has its own
//      multiple, its slope.
//
// Owns its memory; immutable once it is finished, and shared. Cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_LEAF_METRIC_H_
#define ATTND_ENGINE_KDE_INDEX_LEAF_METRIC_H_

#include <cstdint>

#include "engine/aligned_buffer.h"
#include "engine/exact/segment.h"
#include "engine/kde/index/leaf_summary.h"
#include "engine/scratch.h"

namespace attnd::engine {

class LeafMetric {
 public:
  // `centre`: [d_k], finite.
  LeafMetric(const BlockLayout& layout, const float* centre);

  // Whether this many keys tell: eight for each component, which also keeps a metric below an
  // eighth of the keys and values it is learned from.
  static bool Enough(const BlockLayout& layout, std::int64_t keys);
  static std::int64_t Bytes(const BlockLayout& layout);

  // P is learned from every fourth leaf, which saves a third of the time.
  void AddLeaf(const LeafMeans& leaf, Scratch& scratch);
  // After `leaves` leaves. Where keys do not vary or numbers are not finite P is
  // the unit matrix and G zero.
  void Finish(std::int64_t leaves);

  // The multiple of G that fits the leaf best: <Cov of the leaf, G> / <G, G>.
  float Slope(const LeafMeans& leaf, Scratch& scratch) const;

  // The multiple of G that fits one pair of offsets best: k^T G v / <G, G>. key [d_k], value
  // [padded d_v].
  double Along(const float* key, const float* value) const;

  const float* centre() const { return centre_.data(); }
  std::int64_t padded_key_dim() const { return padded_key_dim_; }
  const float* covariance() const { return covariance_.data(); }              // [d_k][padded d_k]
  const float* cross_covariance() const { return cross_covariance_.data(); }  // [d_k][padded d_v]

 private:
  const BlockLayout layout_;
  const std::int64_t padded_key_dim_;
  AlignedBuffer<float> centre_;
  AlignedBuffer<float> covariance_;
  AlignedBuffer<float> cross_covariance_;
  std::int64_t added_ = 0;     // leaves
  double cross_square_ = 0.0;  // <G, G>
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_LEAF_METRIC_H_
