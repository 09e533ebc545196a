// Specified random numbers: the same on every machine, after a restart and with every standard
// library.
//
// Bits: SplitMix64 (Steele et al. 2014), counter-based: number i of a seed is a function of both,
// which RandomAt() computes out of order. Uniform numbers: (x >> 11 + 1/2) 2^-53, never 0 or 1.
// Normal numbers: Marsaglia's polar method, both of a pair in order, with the logarithm of
// random.cc. Uniform and normal numbers take +, -, *, / and sqrt in f64 only, in the order written.
//
// Not for secrets. An object belongs to one thread; the functions may be called from any.
#ifndef ATTND_ENGINE_RANDOM_H_
#define ATTND_ENGINE_RANDOM_H_

#include <cstdint>

namespace attnd::engine {

inline constexpr std::uint64_t kSplitMixStep = 0x9E3779B97F4A7C15ULL;

// SplitMix64's output function: a bijection.
constexpr std::uint64_t MixBits(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// Number `index`, from 0, of the sequence of `seed`.
constexpr std::uint64_t RandomAt(std::uint64_t seed, std::uint64_t index) {
  return MixBits(seed + (index + 1) * kSplitMixStep);
}

// A seed for the use `stream` of `seed`, so that uses do not share numbers.
constexpr std::uint64_t StreamSeed(std::uint64_t seed, std::uint64_t stream) {
  return MixBits(RandomAt(seed, stream) ^ 0xD1B54A32D192ED03ULL);
}

constexpr double ToUniform(std::uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

// A whole number in [0, n) for n >= 1; a number's share is off by at most n 2^-64.
constexpr std::int64_t ToIndex(std::uint64_t bits, std::int64_t n) {
  // Not unsigned __int128, which is no ISO C++: the upper half of the product, by parts.
  const auto range = static_cast<std::uint64_t>(n);
  const std::uint64_t low = (bits & 0xFFFFFFFFU) * (range & 0xFFFFFFFFU);
  const std::uint64_t middle = (bits >> 32) * (range & 0xFFFFFFFFU) + (low >> 32);
  const std::uint64_t other = (bits & 0xFFFFFFFFU) * (range >> 32) + (middle & 0xFFFFFFFFU);
  return static_cast<std::int64_t>((bits >> 32) * (range >> 32) + (middle >> 32) + (other >> 32));
}

class NormalGenerator {
 public:
  explicit NormalGenerator(std::uint64_t seed) : seed_(seed) {}
  double Next();

 private:
  double Uniform() { return ToUniform(RandomAt(seed_, index_++)); }

  std::uint64_t seed_;
  std::uint64_t index_ = 0;
  double second_ = 0;
  bool has_second_ = false;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_RANDOM_H_
