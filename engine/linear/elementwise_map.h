// A feature map that applies one function to each number, to keys and queries alike: c = d.
//
// `Apply` is called as apply(x, y, n): y[0..n) from x[0..n), an element's bits depending on that
// element alone. Immutable, thread-safe.
#ifndef ATTND_ENGINE_LINEAR_ELEMENTWISE_MAP_H_
#define ATTND_ENGINE_LINEAR_ELEMENTWISE_MAP_H_

#include <cstdint>

#include "engine/linear/feature_map.h"

namespace attnd::engine {

template <typename Apply>
class ElementwiseMap final : public FeatureMap {
 public:
  ElementwiseMap(std::int64_t dim, KernelSign sign, Apply apply)
      : dim_(dim), sign_(sign), apply_(apply) {}

  std::int64_t feature_dim() const override { return dim_; }
  KernelSign sign() const override { return sign_; }

  void MapKeys(const MapRows& rows, const MapFeatures& out, Scratch& /*scratch*/) const override {
    Map(rows, out);
  }
  void MapQueries(const MapRows& rows, const MapFeatures& out,
                  Scratch& /*scratch*/) const override {
    Map(rows, out);
  }

 private:
  void Map(const MapRows& rows, const MapFeatures& out) const {
    if (rows.stride == dim_ && out.stride == dim_) {
      apply_(rows.rows, out.features, rows.count * dim_);
      return;
    }
    for (std::int64_t i = 0; i < rows.count; ++i) {
      apply_(rows.rows + i * rows.stride, out.features + i * out.stride, dim_);
    }
  }

  std::int64_t dim_;
  KernelSign sign_;
  Apply apply_;
};

template <typename Apply>
std::unique_ptr<const FeatureMap> MakeElementwiseMap(std::int64_t dim, KernelSign sign,
                                                     Apply apply) {
  return std::make_unique<ElementwiseMap<Apply>>(dim, sign, apply);
}

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_ELEMENTWISE_MAP_H_
