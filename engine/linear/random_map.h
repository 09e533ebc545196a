// What the maps that estimate exp(scale q . k) by random features have in common: with
// x' = sqrt(scale) x and projections w_1 ... w_m (projection.h), features are functions of w_j . x'
// and ||x'||^2, the same for queries and keys, and come scaled by a power of two per row.
//
// Queries come multiplied by the scale, so they are divided by its root here. A derived class says
// what a row's features are. Immutable; any thread.
#ifndef ATTND_ENGINE_LINEAR_RANDOM_MAP_H_
#define ATTND_ENGINE_LINEAR_RANDOM_MAP_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/linear/feature_map.h"
#include "engine/linear/projection.h"

namespace attnd::engine {

// The projection that `config` asks for. InvalidArgument where the layer's scale is not positive
// (its square root is taken) and where the projection would be too large.
absl::StatusOr<Projection> MakeProjection(const FeatureMapConfig& config, const LayerShape& shape);

class RandomMap : public FeatureMap {
 public:
  bool scaled() const final { return true; }
  std::int64_t operations() const final { return projection_.columns() * projection_.dim(); }
  const Projection* projection() const final { return &projection_; }

  void MapKeys(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const final {
    Map(rows, key_factors_, out, scratch);
  }
  void MapQueries(const MapRows& rows, const MapFeatures& out, Scratch& scratch) const final {
    Map(rows, query_factors_, out, scratch);
  }

 protected:
  // `scales`: by what the components of x' are multiplied for queries and divided for keys, which
  // changes no q . k; empty: ones.
  RandomMap(Projection projection, double scale, const std::vector<float>& scales = {});

  std::int64_t projections() const { return projection_.count(); }

  // Writes a row's c features and returns its exponent. dots: w_j . x'.
  virtual std::int32_t MapRow(const float* dots, double norm_squared, float* features) const = 0;

 private:
  void Map(const MapRows& rows, const std::vector<float>& factors, const MapFeatures& out,
           Scratch& scratch) const;

  Projection projection_;
  std::vector<float> key_factors_;    // x' of keys is factors * x
  std::vector<float> query_factors_;  // and of queries
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_RANDOM_MAP_H_
