// Angular hashing (Charikar 2002): the signs of a row's projections on random directions, which
// agree for two rows with probability 1 - angle / pi each.
//
// The signs are read as a number in reflected Gray code, and a row's rank is where that number
// stands in the code's order: buckets of neighbouring ranks differ in one sign, so that a run of
// ranks is a set of buckets near each other. A row of zeros has no positive sign. Immutable; any
// thread.
#ifndef ATTND_ENGINE_KDE_PAPER_ANGULAR_HASH_H_
#define ATTND_ENGINE_KDE_PAPER_ANGULAR_HASH_H_

#include <cstdint>

#include "engine/aligned_buffer.h"
#include "engine/kde/rows.h"
#include "engine/scratch.h"

namespace attnd::engine {

// The place of `code` in the reflected Gray code: rank r has the code r ^ (r >> 1).
constexpr std::uint32_t GrayRank(std::uint32_t code) {
  for (std::uint32_t shift = 1; shift < 32; shift *= 2) code ^= code >> shift;
  return code;
}

class AngularHash {
 public:
  static constexpr std::int64_t kBits = 16;

  AngularHash(std::uint64_t seed, std::int64_t dim);

  // The ranks of all rows, below 2^kBits.
  void Ranks(Rows rows, std::uint32_t* ranks, Scratch& scratch) const;

 private:
  std::int64_t dim_;
  AlignedBuffer<float> directions_;  // [dim, kBits]
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_PAPER_ANGULAR_HASH_H_
