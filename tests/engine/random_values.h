// Random inputs for the numeric tests: a fixed seed, values whose sums round differently in almost
// every order.
#ifndef ATTND_TESTS_ENGINE_RANDOM_VALUES_H_
#define ATTND_TESTS_ENGINE_RANDOM_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace attnd::engine {

// `count` normal values with mean 0 and the given standard deviation.
inline std::vector<float> RandomValues(std::int64_t count, std::uint32_t seed,
                                       float deviation = 1.0F) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

}  // namespace attnd::engine

#endif  // ATTND_TESTS_ENGINE_RANDOM_VALUES_H_
