// The weights of a learned feature map (learned.cc): for each head h a matrix W_h [m, d] and a bias
// b_h [m], of keys by kv-head and of queries by query head.
//
// The numbers of a map, in their order: key weights [H, m, d], key biases [H, m] if there are any,
// query weights [Hq, m, d], query biases [Hq, m] if there are any.
//
// A MapWeights is complete, finite and immutable; any thread. It is shared: by all layers of all
// sessions that use it. A builder is for one thread and takes memory as numbers arrive, head by
// head; it may throw std::bad_alloc and is then to be dropped.
#ifndef ATTND_ENGINE_LINEAR_MAP_WEIGHTS_H_
#define ATTND_ENGINE_LINEAR_MAP_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/aligned_buffer.h"

namespace attnd::engine {

// What is applied to y = W_h x + b_h; see learned.cc.
enum class MapActivation { kRelu, kExp, kSoftmax, kHedgehog };

struct MapWeightsShape {
  MapActivation activation = MapActivation::kRelu;
  std::int64_t kv_heads = 1;     // H
  std::int64_t query_heads = 1;  // Hq, a multiple of H
  std::int64_t key_dim = 1;      // d
  std::int64_t features = 1;     // m
  bool key_bias = false;
  bool query_bias = false;

  friend bool operator==(const MapWeightsShape&, const MapWeightsShape&) = default;

  // How many numbers the map has. Requires a checked shape, as all that follows.
  std::int64_t numbers() const;
  // Memory of the first `count` of them as MapWeights holds them, a head whole as soon as it has
  // begun; with bytes(numbers()) that of the whole map.
  std::int64_t bytes(std::int64_t count) const;
};

// InvalidArgument where a size is not 1 to 4,096 (features: to 65,536), or query_heads no multiple
// of kv_heads. The counts of a checked shape fit 64 bits.
absl::Status CheckMapWeightsShape(const MapWeightsShape& shape);

class MapWeights {
 public:
  struct Head {
    AlignedBuffer<float> weights;  // W_h^T, [d, columns()]; zeros in columns beyond m
    AlignedBuffer<float> bias;     // [columns()], likewise; empty: none
  };

  const MapWeightsShape& shape() const { return shape_; }
  // m rounded up, as products need it (engine/gemm.h).
  std::int64_t columns() const;
  const Head& key_head(std::int64_t h) const { return key_heads_[static_cast<std::size_t>(h)]; }
  const Head& query_head(std::int64_t h) const { return query_heads_[static_cast<std::size_t>(h)]; }
  std::int64_t bytes() const { return shape_.bytes(shape_.numbers()); }

 private:
  friend class MapWeightsBuilder;
  explicit MapWeights(const MapWeightsShape& shape);

  MapWeightsShape shape_;
  std::vector<Head> key_heads_;
  std::vector<Head> query_heads_;
};

class MapWeightsBuilder {
 public:
  // Requires a checked shape.
  explicit MapWeightsBuilder(const MapWeightsShape& shape);

  const MapWeightsShape& shape() const { return map_->shape_; }
  std::int64_t received() const { return received_; }
  bool complete() const { return received_ == numbers_; }

  // Takes the next numbers; no more than are missing. InvalidArgument where one is not finite; the
  // builder is then to be dropped.
  absl::Status Add(const float* numbers, std::int64_t count);

  // The map. Requires complete(); once.
  std::shared_ptr<const MapWeights> Finish();

 private:
  // One of the arrays of a map.
  struct Section {
    std::vector<MapWeights::Head>* heads;
    bool bias;
  };

  std::int64_t HeadNumbers() const;
  void Store(const float* numbers, std::int64_t count);
  void StoreWeights(const float* numbers, std::int64_t count, float* weights);

  std::shared_ptr<MapWeights> map_;
  std::int64_t numbers_;
  std::int64_t received_ = 0;
  std::vector<Section> sections_;
  std::size_t section_ = 0;  // where the next number goes
  std::size_t head_ = 0;
  std::int64_t at_ = 0;  // within the head
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_LINEAR_MAP_WEIGHTS_H_
