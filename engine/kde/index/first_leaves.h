// The leaves that clustering starts with. Where spans are merged their full leaves are kept whole;
// other keys, of raw blocks, of leaves that are not full and isolated ones, are cut into leaves.
// Then leaves are put in order, so that neighbours are alike.
//
// Takes a fifth of the time of cutting all keys of a main span of 15,872 word vectors. What follows
// then errs no more: 65,536 of them at 19 times the speed of reading all keys .035 (Frobenius
// norm), cut anew .042.
//
// A pure function of the keys and of the leaves they came in. Not thread-safe; cannot fail but for
// std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_FIRST_LEAVES_H_
#define ATTND_ENGINE_KDE_INDEX_FIRST_LEAVES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/kde/index/bisection.h"

namespace attnd::engine {

class FirstLeaves {
 public:
  // `order` holds every number of a key once, those of `kept` full leaves first, leaf by leaf. It
  // outlives this.
  FirstLeaves(const KeyMatrix& keys, std::int64_t kept, std::vector<std::int32_t>& order);

  FirstLeaves(const FirstLeaves&) = delete;
  FirstLeaves& operator=(const FirstLeaves&) = delete;

  // Does the next step. True when order_ holds the leaves, 64 keys each but for the last.
  bool Step();

  // Calls of Step() that there will be.
  std::int64_t steps() const { return steps_; }

 private:
  void BeginOrdering();
  void OrderLeaves();

  const KeyMatrix keys_;
  const std::int64_t kept_;
  std::vector<std::int32_t>& order_;
  std::int64_t steps_ = 0;
  std::optional<Bisection> of_keys_;  // that are in no leaf
  std::vector<float> means_;          // [full leaves, dim]
  std::vector<std::int32_t> leaves_;  // their order
  std::optional<Bisection> of_means_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_FIRST_LEAVES_H_
