// Where clustering starts: a set of keys is cut in two at the middle between two centres, and the
// halves again, until every piece fits a leaf of 64 keys.
//
// The two centres are the 2-means of a sample. The cut is put at the multiple of 64 keys nearest to
// the middle plane, but never beyond a quarter of the piece, so that all leaves but the last one
// are full and the depth is bounded. Pieces that are neighbours in the tree are neighbours in the
// order.
//
// A pure function of the keys. Not thread-safe; cannot fail but for std::bad_alloc.
#ifndef ATTND_ENGINE_KDE_INDEX_BISECTION_H_
#define ATTND_ENGINE_KDE_INDEX_BISECTION_H_

#include <cstdint>
#include <vector>

namespace attnd::engine {

// Row-major keys [count, dim], components of up to 1e15 in magnitude. Borrowed.
struct KeyMatrix {
  const float* rows = nullptr;
  std::int64_t count = 0;
  std::int64_t dim = 0;

  const float* row(std::int64_t i) const { return rows + i * dim; }
};

class Bisection {
 public:
  // Permutes `order`, which holds the numbers below keys.count.
  Bisection(const KeyMatrix& keys, std::vector<std::int32_t>& order);

  // Cuts one piece. True when every piece is a leaf.
  bool Step();

  // Calls of Step() that there will be, at least.
  std::int64_t steps() const { return steps_; }

 private:
  struct Range {
    std::int64_t first = 0;
    std::int64_t end = 0;
  };

  void FindCentres(const Range& range);
  void Cut(const Range& range);

  const KeyMatrix keys_;
  std::vector<std::int32_t>& order_;
  const std::int64_t steps_;
  std::vector<Range> open_;  // pieces of more than a leaf
  std::vector<float> low_;   // the centres
  std::vector<float> high_;
  std::vector<float> direction_;
  float middle_ = 0.0F;  // between the centres, along the direction
  std::vector<std::int32_t> sample_;
  std::vector<std::int32_t> low_keys_;  // of the sample, nearer to the low centre
  std::vector<std::int32_t> high_keys_;
  std::vector<float> dots_;  // of keys and the direction, or squared distances
  std::vector<std::uint64_t> projections_;
};

}  // namespace attnd::engine

#endif  // ATTND_ENGINE_KDE_INDEX_BISECTION_H_
