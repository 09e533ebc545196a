// The feature maps that the benchmarks measure, each with parameters that suit it.
//
// To measure one more: its line in map_list.cc, and its arithmetic in linear_bar.cc.
#ifndef ATTND_TESTS_BENCH_MAP_LIST_H_
#define ATTND_TESTS_BENCH_MAP_LIST_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/block.h"
#include "engine/engine_config.h"

namespace attnd::bench {

// What a map may be fitted to: a layer's tokens and queries [tokens, heads, key_dim]. Borrowed.
struct Sample {
  engine::LayerShape shape;
  std::int64_t tokens = 0;
  std::span<const float> queries;
  std::span<const float> keys;
};

struct BenchMap {
  const char* name;        // as it is shown
  const char* parameters;  // likewise
  // Sets the parameters; null: there are none.
  void (*configure)(const Sample& sample, engine::FeatureMapConfig& config);
  const char* registered = name;  // its name in the registry of the engine
};

std::span<const BenchMap> BenchMaps();

// A learned map that is fitted to its sample, where it begins, and where it ends.
std::span<const BenchMap> DistilledMaps();

// A layer with this map. Denominators are refused below 1e-30 only: those of scaled features are in
// units of the largest one, so that small ones are no sign of trouble. `seed`: of random features.
engine::LinearConfig ConfigOf(const BenchMap& map, const Sample& sample, std::uint64_t seed = 0);

}  // namespace attnd::bench

#endif  // ATTND_TESTS_BENCH_MAP_LIST_H_
